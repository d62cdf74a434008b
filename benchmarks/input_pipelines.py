"""Measure the images per second of each kind of input, alone and while a small network trains on them.

    python -m benchmarks.input_pipelines [--images 8192] [--batch 128] [--workers 1] [--rounds 3] [--out FILE]

Inputs: resident (augmented on the device, a block at once), loader (worker processes of each rank, torchvision v2
image by image). Kinds take turns, so that drift of the machine affects all
alike. A figure is the median of its rounds. The script also prints how many workers a GPU would need at the reference
speeds; that number is an estimate, not a measurement.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.figures import machine, tell
from sweeps.trial import Batch
from tests.unit.trainables.ranks import Processes, rendezvous, request, run
from trainables import inputs, process_group
from trainables.context import Context
from trainables.inputs.augmentation import Augmentation
from trainables.inputs.feed import Feed, Form, Part

CHANGES = {"crop_padding": 4, "flip": True}
KINDS = ("resident", "loader")
GPU_SPEEDS = {"resnet18 at 1024": 94_041, "resnet50 at 512": 15_980, "cnn10 at 1024": 102_199}
"""Images/s of one H200 in the reference of the GPU host."""


def fed_per_s(rank: int, kind: str, given: dict[str, Any], meet: str | None) -> float:
    """Return the images per second of this rank's input without training, in the second epoch."""
    torch.set_num_threads(1)
    ranks = given["ranks"]
    rank_group = process_group.join(
        Context.alone(rank=rank, world_size=ranks, rendezvous=meet, gang_id=f"{kind}{meet}")
    )
    images = torch.randint(0, 256, (given["images"], 3, 32, 32), dtype=torch.uint8)
    shares = (given["batch"],) * ranks
    feed = Feed(
        part=Part(images=images, targets=torch.zeros(len(images), dtype=torch.int64)),
        form=Form(device="cpu", dtype=torch.float32, channels_last=False, mean=(0.5,) * 3, std=(0.25,) * 3),
        augmentation=Augmentation(**CHANGES),
        batch=Batch(global_batch_size=sum(shares), shares=shares),
        seed=0,
    )
    source = inputs.build(kind, feed, rank_group, {"workers": given["workers"]})
    try:
        passes = len(images) // sum(shares)
        minibatches = source.minibatches(0)
        for _ in islice(minibatches, passes):
            pass  # an epoch to start the workers
        started = time.perf_counter()
        taken = sum(len(labels) for _, labels in islice(minibatches, passes))
        (seconds,) = rank_group.largest(time.perf_counter() - started)
    finally:
        source.close()
    return taken * ranks / seconds


def trained_per_s(processes: Processes, kind: str, given: dict[str, Any]) -> float:
    """Return `samples_per_s` of a trial."""
    config = {
        "trainable": {"input": kind, "loader": {"workers": given["workers"]}, "val_fraction": 0.0, "window_s": 1.0},
        "model": {"name": "small_cnn"},
        "data": {"name": "synthetic", "train_size": given["images"], "test_size": 64, "augment": CHANGES},
        "budget": {"steps": 5},
    }
    ranks = given["ranks"]
    place = {"gang_id": f"{kind}{time.monotonic()}", "rendezvous": rendezvous()} if ranks > 1 else {}
    asked = {"shares": (given["batch"],) * ranks, "config": config} | place
    answers = processes.call(run, *((request(rank=rank, **asked),) for rank in range(ranks)))
    assert all(answer["status"] == "ok" for answer in answers), answers
    return float(answers[0]["metrics"]["samples_per_s"])


def measure(given: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Measure both speeds of every kind, in turns."""
    processes, ranks = Processes(given["ranks"]), given["ranks"]
    measured: dict[str, dict[str, list[float]]] = {kind: {"fed": [], "trained": []} for kind in KINDS}
    try:
        for _ in range(rounds):
            for kind in KINDS:
                meet = rendezvous() if ranks > 1 else None
                fed = processes.call(fed_per_s, *((rank, kind, given, meet) for rank in range(ranks)))
                measured[kind]["fed"].append(fed[0])
                measured[kind]["trained"].append(trained_per_s(processes, kind, given))
    finally:
        processes.close()
    speeds = {kind: {what: median(values) for what, values in rates.items()} for kind, rates in measured.items()}
    return {
        "ranks": ranks,
        "samples_per_s": speeds,
        "resident_over": {
            kind: {what: speeds["resident"][what] / speed for what, speed in kind_speeds.items()}
            for kind, kind_speeds in speeds.items()
        },
        "rounds": measured,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Format the figures as a Markdown table."""
    lines = [
        "| ranks | input | images/s by itself | resident / it | images/s in training | resident / it |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for kind in KINDS:
            speed, factor = row["samples_per_s"][kind], row["resident_over"][kind]
            lines.append(
                f"| {row['ranks']} | {kind} | {speed['fed']:,.0f} | {factor['fed']:.2f}"
                f" | {speed['trained']:,.0f} | {factor['trained']:.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=128, help="samples a rank")
    parser.add_argument("--workers", type=int, default=1, help="of each loader")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    given = {"images": asked.images, "batch": asked.batch, "workers": asked.workers}
    rows = [measure(given | {"ranks": ranks}, asked.rounds) for ranks in (1, 2)]
    worker_speed = rows[0]["samples_per_s"]["loader"]["fed"] / max(1, asked.workers)
    needed = {name: round(speed / worker_speed, 1) for name, speed in GPU_SPEEDS.items()}
    print(table(rows))
    print(
        f"a worker here loads {worker_speed:,.0f} images/s; to feed one H200 it would take, of such workers: {needed}"
    )
    tell({**machine(), "given": given, "rows": rows, "workers_for_one_gpu": needed}, asked.out, long="rows")


if __name__ == "__main__":
    main()
