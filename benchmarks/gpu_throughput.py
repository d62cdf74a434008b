"""Compare trials on real, augmented CIFAR-10 with the bare training step, on one and on several GPUs.

    python -m benchmarks.gpu_throughput cifar10.npz --out gpu_throughput.json [--cases resnet18:128:graph …]
    python -m benchmarks.gpu_throughput cifar10.npz --gpus 2 --cases resnet18:128:compile-graph …

A case is model:batch:kind as in yardstick.py, or model:batch:kind/ours to compare with another kind: `tuned/graph`
compares the project's graph with the plain step that people write. Each trial goes through `trainables.rank.run`, as
from a back end: images shuffled, cropped and flipped, schedule, metrics, test at the end. Its figure is its
`samples_per_s`, over a window of at least 2 s; the median of its epochs from the second on is shown, too.

On one GPU the baseline is plain PyTorch in the same process just before (median of 3 windows, random images). On
several GPUs it is a trial on one of them at the same batch per GPU: the ratio is the efficiency. `apart` is the same
with all GPUs at work independently. On several GPUs windows are longer and begin later: see `STEADY`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.yardstick import Case
from sweeps.trial import RankRequest
from tests.unit.trainables.ranks import Processes, rendezvous, request, run

SETTINGS: dict[str, dict[str, Any]] = {
    "naive": {"precision": "fp32"},
    "tuned": {"precision": "bf16", "memory_format": "channels_last"},
}
SETTINGS["graph"] = SETTINGS["tuned"] | {"cuda_graph": "on"}
SETTINGS["compile"] = SETTINGS["tuned"] | {"compile": "default"}
SETTINGS["compile-graph"] = SETTINGS["graph"] | SETTINGS["compile"]
SETTINGS["compile-graph-bf16"] = SETTINGS["compile-graph"] | {"exchange": "bf16"}

CASES = [
    "resnet18:1024:tuned",
    "resnet18:1024:tuned/graph",
    "resnet50:512:tuned/graph",
    "wrn28_10:512:tuned/graph",
    "cnn10:1024:tuned/graph",
    "resnet18:1024:compile/compile-graph",
    "cnn10:1024:compile/compile-graph",
    "resnet18:128:compile-graph",
    "resnet50:128:compile-graph",
    "cnn10:128:compile-graph",
]
WANTED = {"naive": 1.0, "tuned": 1.0, "compile": 0.97, "graph": 0.97, "compile-graph": 0.97}
"""Of the plain PyTorch of each kind."""
STEADY = {"warmup_s": 2.0, "window_s": 4.0}
"""Of GPUs that are compared with one another. One that gets to its power limit keeps its highest clock for .7 s, falls
by a quarter for .3 s, and goes up and down around its own pace from then on: 3% lie between windows of 2 s that begin
early and late (an H200 at 700 W, resnet18 compiled at 1,024)."""
LARGE = 512
"""Samples a GPU from which on more is wanted."""


def wanted(yardstick: Case, gpus: int) -> float:
    """Return the lowest acceptable ratio."""
    if gpus == 1:
        return WANTED[yardstick.kind]
    if yardstick.batch_size < LARGE:
        return 0.93
    return 0.98 if gpus == 2 else 0.97


class Ranks(Processes):
    """Processes with one GPU each."""

    def __init__(self, count: int, device: str) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        own = visible.split(",") if visible else [str(gpu) for gpu in range(count)]
        super().__init__(count, [{"CUDA_VISIBLE_DEVICES": gpu if device == "cuda" else ""} for gpu in own[:count]])


def plain(text: str, device: str) -> list[float]:
    """Run windows of the bare step; its memory and compiled code are freed."""
    from benchmarks import yardstick
    from trainables import isolation

    try:
        return yardstick.images_per_s(Case.of(text), device=device)
    finally:
        isolation.leave()


def asked(case: Case, rank: int, count: int, given: argparse.Namespace, meeting: str | None) -> RankRequest:
    """Return the request that a back end would send to this rank."""
    timing = {"val_fraction": 0.0, "window_s": given.window_s, "window_steps": 50, "warmup_steps": 20}
    if given.gpus > 1 and given.device == "cuda":
        timing |= STEADY | {"window_s": max(given.window_s, STEADY["window_s"])}
    return request(
        rank=rank,
        shares=(case.batch_size,) * count,
        lr=0.1,
        config={
            "trainable": SETTINGS[case.kind] | timing,
            "model": case.model_config,
            "data": given.data_config | {"augment": {"crop_padding": 4, "flip": True}},
            "optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 5e-4},
            "budget": {"epochs": given.epochs},
        },
        device=given.device,
        gpus_per_rank=1,
        threads=4,
        rendezvous=meeting,
    )


def measured(case: Case, ranks: Ranks, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return the trial's figures; `status` and `note` say how it ended."""
    meeting = rendezvous() if count > 1 else None
    answers = ranks.call(run, *[(asked(case, rank, count, given, meeting),) for rank in range(count)])
    answer = next((rank_answer for rank_answer in answers if rank_answer["status"] != "ok"), answers[0])
    metrics = answer["metrics"]
    if answer["status"] != "ok":
        return {key: answer[key] for key in ("status", "note", "trace", "provenance")}
    speeds = [(row["samples"] - before["samples"]) / row["epoch_s"] for before, row in pairwise(answers[0]["rows"])]
    keys = ("samples_per_s", "window_s", "window_steps", "first_epoch_s", "peak_memory_gb", "accuracy")
    return {
        "status": "ok",
        "epoch_samples_per_s": median(speeds) if speeds else math.nan,
        "provenance": answer["provenance"],
    } | {key: metrics[key] for key in keys if key in metrics}


def apart(case: Case, ranks: Ranks, given: argparse.Namespace) -> list[float]:
    """Return samples/s of each GPU with all at work independently: a loss here is not caused by the exchange."""
    answers = ranks.call(run, *[(asked(case, 0, 1, given, None),) for _ in range(given.gpus)])
    return [answer["metrics"].get("samples_per_s", math.nan) for answer in answers]


def compare(text: str, ranks: Ranks, given: argparse.Namespace) -> dict[str, Any]:
    """Return one row of the table."""
    plain_text, _, own = text.partition("/")
    plain_case = Case.of(plain_text)
    case = dataclasses.replace(plain_case, kind=own or plain_case.kind)
    row: dict[str, Any] = {"case": text, "gpus": given.gpus, "wanted": wanted(plain_case, given.gpus)}
    if given.gpus == 1:
        row["windows"] = ranks.call(plain, (plain_text, given.device))[0]
        row["baseline"] = median(row["windows"])
    else:
        row["alone"] = measured(case, ranks, 1, given)
        row["alone"].pop("provenance", None)
        row["baseline"] = given.gpus * row["alone"].get("samples_per_s", math.nan)
        row["apart"] = apart(case, ranks, given)
    row["ours"] = measured(case, ranks, given.gpus, given)
    row["ratio"] = row["ours"].get("samples_per_s", math.nan) / row["baseline"]
    return row


def table(rows: Sequence[Mapping[str, Any]], gpus: int) -> str:
    """Format the rows as Markdown; an error replaces the figure."""
    baseline = "plain PyTorch, images/s" if gpus == 1 else f"ours on one GPU × {gpus}, samples/s"
    lines = [
        f"| model : batch : kind / ours | {baseline} | ours, samples/s | ours by epochs | ratio | wanted |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        speeds = [row["ours"].get(key, math.nan) for key in ("samples_per_s", "epoch_samples_per_s")]
        shown = [f"{speed:,.0f}" for speed in (row["baseline"], *speeds)]
        wrong = row["ours"].get("note", "")
        lines.append(f"| {row['case']} | {' | '.join(shown)} | {row['ratio']:.3f}{wrong} | {row['wanted']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=lambda text: Path(text).resolve(), help="x_train, y_train, x_test, y_test")
    arguments.add_argument("--out", type=Path, help="where the figures go, as JSON")
    arguments.add_argument("--cases", nargs="+", default=CASES)
    arguments.add_argument("--gpus", type=int, default=1)
    arguments.add_argument("--epochs", type=int, default=3, help="of training before the window")
    arguments.add_argument("--window-s", type=float, default=2.0)
    arguments.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to rehearse")
    given = arguments.parse_args()
    given.data_config = {"name": "npz", "path": str(given.data)}
    ranks = Ranks(given.gpus, given.device)
    figures: dict[str, Any] = {"command": " ".join(sys.argv), "rows": []}
    for text in given.cases:
        try:
            row = compare(text, ranks, given)
        except RuntimeError as error:  # of the yardstick: the other cases may still be measured
            print(f"{text}: {error}", flush=True)
            continue
        figures["rows"].append(row)
        figures["about"] = row["ours"].pop("provenance", None) or figures.get("about")
        print(table([row], given.gpus).splitlines()[-1], row["ours"].get("trace", ""), flush=True)
        if given.out:
            given.out.write_text(json.dumps(figures, indent=2) + "\n")
    ranks.close()
    print(table(figures["rows"], given.gpus))


if __name__ == "__main__":
    main()
