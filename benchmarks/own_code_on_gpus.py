"""Sweep the templates of `mode=init` on 2 GPUs: a command and a function.

    python -m benchmarks.own_code_on_gpus --out own_code.json [--gpus 2] [--limit-s 115]
    python -m benchmarks.own_code_on_gpus --rehearse --out /tmp/own_code.json     # worker processes on CPU cores

Each is a whole sweep on Ray with trials on 1 GPU and on all. The command has a third cell, which requests more memory
than there is. Missing results are listed under `missing`, and make the exit status 1. About 75 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

SHOWN = ("gpus", "ranks", "device", "device_batch_size", "status", "samples_per_s", "epoch_s", "accuracy", "wall_s")
COUNT = "echo visible_gpus=$(echo $CUDA_VISIBLE_DEVICES | tr , ' ' | wc -w)"
"""In a shell: how many GPUs the command is shown."""
TRAIN = (
    "{{python}} -m torch.distributed.run --nproc_per_node={{gpus}} {folder}/train.py --batch-size {{device_batch_size}}"
    " --lr {{lr}} --seed {{seed}} --epochs {{epochs}}"
)
TOO_LARGE = "{{python}} -c 'import torch; torch.empty(1 << 46, device=\"cuda\")'"
HUGE = 4096
"""The batch of the cell that runs out of memory."""


def main() -> int:
    """Run both sweeps, print and write the results; return 1 if some are missing."""
    given = arguments()
    began_s = time.monotonic()
    sweeps: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in ("command", "function"):
            left_s = given.limit_s - (time.monotonic() - began_s)
            sweeps[way] = swept(way, Path(folder) / way, given, left_s) if left_s > 0 else {"missing": ["no time left"]}
            sweeps["seconds"] = round(time.monotonic() - began_s, 1)
            given.out.write_text(json.dumps(sweeps, indent=1))
    print(json.dumps(sweeps, indent=1))
    return 1 if any(sweeps[way]["missing"] for way in ("command", "function")) else 0


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=115.0)
    parser.add_argument("--rehearse", action="store_true", help="on CPU cores, and so without running out of memory")
    return parser.parse_args()


def swept(way: str, folder: Path, given: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """Make a project, sweep it, and read its table."""
    began_s = time.monotonic()
    orchestrator(["mode=init", f"init.dir={folder}", f"init.kind={way}"], folder.parent, limit_s)
    overrides = command_way(folder, given.rehearse) if way == "command" else []
    device = "cpu" if given.rehearse else "cuda"
    axes = [f"sweep.axes.gpus=[1,{given.gpus}]", "sweep.axes.lr_rule=[none]", f"resources.device={device}"]
    batches = [32, HUGE] if way == "command" and not given.rehearse else [32]
    axes += [f"sweep.axes.device_batch_size={batches}".replace(" ", ""), "report.html=false", "cluster.dashboard=false"]
    if HUGE in batches:
        axes += [f"sweep.exclude=[{{gpus: {given.gpus}, device_batch_size: {HUGE}}}]"]
    ended = orchestrator(["-cd", "conf", "sweep=mine", *axes, *overrides], folder, limit_s)
    rows = table(folder)
    return {
        "seconds": round(time.monotonic() - began_s, 1),
        "exit_status": ended.returncode,
        "missing": list(missing(way, rows, given)) + ([ended.stderr[-2000:]] if ended.returncode else []),
        "trials": rows,
    }


def orchestrator(words: Sequence[str], folder: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run the command line in a separate process, which is interrupted when its time is up."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "orchestrator", *words]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate()
        err += f"\nended after {limit_s:.0f} s"
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def command_way(folder: Path, rehearse: bool) -> list[str]:
    """Wrap the template's command in a shell that prints its arguments, and let one cell run out of memory."""
    train = TRAIN.format(folder=folder)
    large = TOO_LARGE.format()
    words = ["bash", "-c", f"{COUNT}; if [ {{device_batch_size}} = {HUGE} ]; then {large}; else exec {train}; fi"]
    if rehearse:
        words = ["bash", "-c", f"{COUNT}; exec {train}"]
    return [f"trainable.argv={json.dumps(words)}", "+trainable.metrics.visible_gpus='visible_gpus=([0-9]+)'"]


def table(folder: Path) -> list[dict[str, Any]]:
    """Return the trials as plain rows; none if there is no table."""
    import pandas as pd

    path = folder / "results/mine/tables/trials.csv"
    if not path.is_file():
        return []
    read = pd.read_csv(path)
    columns = [name for name in (*SHOWN, "visible_gpus", "provenance.nccl", "provenance.torch") if name in read]
    return json.loads(read[columns].to_json(orient="records"))  # type: ignore[no-any-return]


def missing(way: str, rows: Sequence[Mapping[str, Any]], given: argparse.Namespace) -> Iterator[str]:
    """Return the expected results that are not in the table."""
    for gpus in (1, given.gpus):
        trials = [row for row in rows if row["gpus"] == gpus and row["device_batch_size"] == 32]
        if len(trials) != 1 or trials[0]["status"] != "ok":
            yield f"{way}: the trial on {gpus} GPUs is not ok: {trials}"
            continue
        (row,) = trials
        if not (row["samples_per_s"] or 0) > 0 or not (row["accuracy"] or 0) > 0.5:
            yield f"{way}: no throughput, or nothing learnt, on {gpus} GPUs: {row}"
        if row["ranks"] != (1 if way == "command" else gpus):
            yield f"{way}: {row['ranks']} ranks on {gpus} GPUs"
        if way == "command" and row["visible_gpus"] != (0 if given.rehearse else gpus):
            yield f"command: {row['visible_gpus']} GPUs visible of {gpus}"
        if not given.rehearse and row["device"] == "cpu":
            yield f"{way}: on {gpus} GPUs, but on the CPU"
    large = [row["status"] for row in rows if row["device_batch_size"] == HUGE]
    if way == "command" and not given.rehearse and large != ["oom"]:
        yield f"command: the cell without enough memory is {large}, not ['oom']"


if __name__ == "__main__":
    sys.exit(main())
