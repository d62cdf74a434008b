"""Run all GPU measurements in one command with a time limit; an interruption loses nothing.

    python -m benchmarks.gpu_session cifar10.npz --out gpu_session.json [--limit-s 570] [--only scaling oom …]
    python -m benchmarks.gpu_session --rehearse --out /tmp/rehearsal.json        # on a CPU, with tiny sizes

Each row needs a number of GPUs and an estimated time. Rows that fit the machine and the remaining time are measured in
order, and written at once. Rows in the file that did not fail are skipped, so the same command continues; --again
measures them anew. On a machine with 2 or 4 GPUs start with --only scaling unequal input.

Groups: compile (cnn10), recipe (90.5% on CIFAR-10), script (the published script and the project), input (resident,
loader, shared loader), oom (out of memory as a row), scaling (weak, against the fastest single GPU), unequal (one rank
half as fast), warm (kept against new workers; needs Ray), warm_slices (kept against new processes).
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_measures import (
    Host,
    inputs,
    out_of_memory,
    recipe,
    script,
    throughput,
    unequal,
    warm_and_fresh,
    warm_slices,
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    name: str
    gpus: int = 1
    seconds: float
    """How long it takes, roughly, compilation included."""
    measure: Callable[[Host], dict[str, Any]]

    @property
    def group(self) -> str:
        """The name by which --only selects it."""
        return self.name.partition(":")[0]


def rows() -> Iterator[Row]:
    """Return the measurements, the most important first."""
    yield Row(name="compile:cnn10:128", seconds=70, measure=throughput("cnn10:128:compile-graph", 1))
    yield Row(name="compile:cnn10:1024", seconds=70, measure=throughput("cnn10:1024:compile/compile-graph", 1))
    yield Row(name="recipe:resnet9:24 epochs of 512", seconds=90, measure=recipe(24, 512, 0.4))
    yield Row(name="recipe:resnet9:24 epochs of 1024", seconds=90, measure=recipe(24, 1024, 0.6))
    yield Row(name="recipe:resnet18:15 epochs of 512", seconds=110, measure=recipe(15, 512, 0.3, "resnet18"))
    yield Row(name="oom", seconds=60, measure=out_of_memory)
    yield Row(name="input:1 GPU", seconds=60, measure=inputs(1, 512))
    yield Row(name="script:3 epochs", seconds=120, measure=script(3))
    for gpus in (2, 4):
        for model, batch in (("resnet18", 128), ("resnet50", 128), ("resnet18", 1024), ("resnet50", 512)):
            for own in ("", "/compile-graph-bf16"):
                case = f"{model}:{batch}:compile-graph{own}"
                seconds = 100.0 if model == "resnet50" else 70.0
                yield Row(
                    name=f"scaling:{case}:{gpus}",
                    gpus=gpus,
                    seconds=seconds,
                    measure=throughput(case, gpus),
                )
    yield Row(name="unequal", gpus=2, seconds=90, measure=unequal)
    yield Row(name="input:2 GPUs", gpus=2, seconds=90, measure=inputs(2, 512))
    yield Row(name="warm", seconds=240, measure=warm_and_fresh)
    yield Row(name="warm_slices", seconds=300, measure=warm_slices)
    yield Row(name="script:16 epochs", seconds=180, measure=script(16))


def about(device: str) -> dict[str, Any]:
    """Return the machine and its software."""
    from trainables import provenance

    return provenance.collect("cuda:0" if device == "cuda" else "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "data", type=lambda text: Path(text).resolve(), nargs="?", help="x_train, y_train, x_test, y_test"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=570.0)
    parser.add_argument("--only", nargs="+", help="names or groups of rows")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny sizes and made-up images")
    given = parser.parse_args()
    if not given.rehearse and given.data is None:
        parser.error("give the data, or --rehearse")
    if given.data and not given.data.is_file():
        parser.error(f"there is no file {given.data}")
    known = {name for row in rows() for name in (row.name, row.group)}
    if unknown := set(given.only or ()) - known:
        parser.error(f"there is no row {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    started, host = time.monotonic(), _host(given)
    session = json.loads(given.out.read_text()) if given.out.exists() else {"rows": {}}
    session["about"] = about(host.device)
    for row in rows():
        if given.only and row.name not in given.only and row.group not in given.only:
            continue
        done = row.name in session["rows"] and session["rows"][row.name].get("status") != "failed"
        if done and not given.again:
            continue
        left_s = given.limit_s - (time.monotonic() - started)
        if row.gpus > host.gpus or (row.seconds > left_s and not host.tiny):
            why = f"needs {row.gpus} GPUs" if row.gpus > host.gpus else f"{left_s:.0f} s are left"
            print(f"{row.name}: left out ({why})", flush=True)
            continue
        session["rows"][row.name] = _measured(row, host)
        given.out.write_text(json.dumps(session, indent=2, default=str) + "\n")


def _measured(row: Row, host: Host) -> dict[str, Any]:
    began = time.monotonic()
    try:
        result = row.measure(host)
    except Exception:  # the other rows may still be measured; what went wrong stands in this one's place
        result = {"status": "failed", "trace": traceback.format_exc()}
    result["took_s"] = round(time.monotonic() - began, 1)
    print(f"{row.name}: {json.dumps(_told(result), default=str)}", flush=True)
    return result


def _told(result: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten figures to one line."""
    shown = ("ratio", "wanted", "accuracy", "train_s_after_compilation", "factor", "resident_over", "took_s")
    keys = (*shown, "of_the_sum_of_speeds", "too large", "after it", "auto", "status", "note", "trace")
    return {key: result[key] for key in keys if key in result}


def _host(given: argparse.Namespace) -> Host:
    if given.rehearse:
        data = {"name": "synthetic", "shape": [3, 32, 32], "train_size": 256, "test_size": 64}
        return Host(data=data, device="cpu", gpus=2, tiny=True, given=given)
    import torch

    data = {"name": "npz", "path": str(given.data.resolve())}
    return Host(data=data, device="cuda", gpus=torch.cuda.device_count(), tiny=False, given=given)


if __name__ == "__main__":
    main()
