"""Compare the training loop with a minimal hand-written one: the same steps, slice by slice in turn, on one core.

    python -m benchmarks.loop_overhead [--rounds 150] [--slice-s 0.02] [--out FILE.json]

The hand-written loop gathers its minibatch from normalised images in memory, calls model, loss, backward and a fused
optimizer, and keeps no loss. The project's loop is a trial's step: resident data, schedule, loss, clocks. The result is
hand-written / project by CPU time: the geometric mean over the rounds with a 95% interval, and the ratio of the fastest
slices, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.figures import machine, tell
from orchestrator.statistics.intervals import ratio
from tests.unit.trainables.ranks import request, supervised_trial
from trainables import models
from trainables.inputs.feed import as_pixels
from trainables.supervised.training import SupervisedTrial

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "mlp of 16, batch 64": ({"name": "mlp", "hidden": [16]}, 64),
    "digits CNN, batch 32": ({"name": "small_cnn"}, 32),
    "digits CNN, batch 256": ({"name": "small_cnn"}, 256),
}
PASSING = {"window_s": 0.01, "window_steps": 2, "warmup_steps": 1, "checkpoint": "off", "val_fraction": 0.0}


def trial_of(model: dict[str, Any], batch: int) -> SupervisedTrial:
    """Return a trial that has trained two epochs."""
    asked = request(shares=(batch,), config={"model": model, "trainable": PASSING, "budget": {"epochs": 2}})
    trial = supervised_trial(asked)
    trial.train()
    return trial


def bare(
    trial: SupervisedTrial, model: dict[str, Any], batch: int, wrap: Callable[[nn.Module], nn.Module] = nn.Module.train
) -> Callable[[], None]:
    """Return a hand-written step on the same data; `wrap` wraps the model."""
    workload = trial.workload
    images = workload.form.normalise(as_pixels(workload.split.train.images, "cpu"))
    targets = workload.split.train.targets
    module = wrap(models.build(model, input_shape=workload.input_shape, num_classes=workload.num_classes))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, fused=True)

    def minibatches() -> Iterator[torch.Tensor]:
        while True:
            yield from torch.randperm(len(images))[: len(images) // batch * batch].split(batch)

    indices = minibatches()

    def step() -> None:
        index = next(indices)
        loss = F.cross_entropy(module(images[index]), targets[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def step_s(step: Callable[[], None], count: int) -> float:
    """Return the CPU seconds of one of these steps."""
    began = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - began) / count


def measure(model: dict[str, Any], batch: int, rounds: int, slice_s: float) -> dict[str, Any]:
    """Measure both in turn."""
    trial = trial_of(model, batch)
    steps = {"ours": trial.loop.step, "bare": bare(trial, model, batch)}
    counts = {name: max(5, round(slice_s / step_s(step, 20))) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name in random.Random(number).sample(list(steps), len(steps)):
            times[name].append(step_s(steps[name], counts[name]))
    whole = ratio(np.array(times["bare"]), np.array(times["ours"]), paired=True)
    return {
        "bare_over_ours": [float(whole.point), float(whole.lo), float(whole.hi)],
        "of_the_fastest": min(times["bare"]) / min(times["ours"]),
        "least_step_us": {name: 1e6 * min(seconds) for name, seconds in times.items()},
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--slice-s", type=float, default=0.02)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    cases = {name: measure(*case, given.rounds, given.slice_s) for name, case in CASES.items()}
    tell({"cases": cases, "rounds": given.rounds, "slice_s": given.slice_s, **machine()}, given.out)


if __name__ == "__main__":
    main()
