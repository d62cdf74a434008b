"""Measure the efficiency of two ranks on two cores over gloo: the digits CNN, in slices that take turns.

    python -m benchmarks.two_ranks [--batch 256] [--rounds 40] [--slice-s 0.1] [--free] [--out FILE.json]

Kinds: alone (one trains, the other idles), apart (both train separately at the same time: a lower bound of the loss),
unexchanged (as one gang, but no rank waits for the other), together, and plain_ddp, a hand-written loop around
DistributedDataParallel on the same data. A round's efficiency is alone's seconds per step over the slower rank's. The
result is the geometric mean over the rounds with a 95% interval. Goal: at least 0.85 together. CPU seconds of a step
are reported, too, including gloo's threads: on a busy machine they are more reliable than wall time. Each rank is
bound to a core; with --free the system places them.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.figures import machine, tell
from orchestrator.statistics.intervals import ratio
from tests.unit.trainables.ranks import Processes, rendezvous, request, supervised_trial

KINDS = ("alone", "apart", "unexchanged", "together", "plain_ddp")
MODEL = {"name": "small_cnn"}
WANTED = 0.85
PASSING = {"window_s": 0.01, "window_steps": 2, "warmup_steps": 1, "warmup_s": 0.0, "checkpoint": "off"}

_trials: dict[str, Any] = {}
"""In a rank's process: by kind."""
_steps: dict[str, Callable[[], None]] = {}
"""Likewise."""


def prepare(kind: str, rank: int, meet: str, batch: int, core: int) -> None:
    """Make this rank's trial of a kind, and train an epoch; `core` < 0: on any."""
    import torch

    if core >= 0:
        os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    gang = kind not in ("alone", "apart")
    place = {"rank": rank, "rendezvous": meet, "gang_id": meet} if gang else {}
    asked = request(
        shares=(batch, batch) if gang else (batch,),
        config={"model": MODEL, "trainable": PASSING, "budget": {"epochs": 1}},
        **place,
    )
    _trials[kind] = supervised_trial(asked)
    _trials[kind].train()
    _steps[kind] = plain_step(_trials[kind], batch) if kind == "plain_ddp" else _trials[kind].loop.step


def plain_step(trial: Any, batch: int) -> Callable[[], None]:
    """Return a hand-written step with a separate model."""
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.loop_overhead import bare

    return bare(trial, MODEL, batch, wrap=DistributedDataParallel)


def step_s(kind: str, count: int) -> tuple[float, float]:
    """Return wall and CPU seconds of one of these steps."""
    trial = _trials[kind]
    with trial.replica.step.without_exchange() if kind == "unexchanged" else nullcontext():
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(count):
            _steps[kind]()
        return (time.perf_counter() - began) / count, (time.process_time() - cpu_began) / count


class Pair:
    """Two processes with a trial of each kind."""

    def __init__(self, batch: int, cores: list[int]) -> None:
        self._processes, meet = Processes(2), rendezvous()
        for kind in KINDS:
            self._processes.call(prepare, *((kind, rank, meet, batch, core) for rank, core in enumerate(cores)))

    def step_s(self, kind: str, count: int) -> tuple[float, float]:
        """Return wall seconds of the slower rank's step, and mean CPU seconds."""
        if kind == "alone":
            return self._processes.call(step_s, (kind, count))[0]  # type: ignore[no-any-return]
        times = self._processes.call(step_s, (kind, count), (kind, count))
        return max(wall for wall, _ in times), sum(cpu for _, cpu in times) / 2

    def close(self) -> None:
        """End them."""
        self._processes.close()


def measure(pair: Pair, rounds: int, slice_s: float) -> dict[str, list[tuple[float, float]]]:
    """Return wall and CPU seconds of a step of each kind, round by round."""
    counts = {kind: max(5, round(slice_s / pair.step_s(kind, 5)[0])) for kind in KINDS}
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in random.Random(number).sample(KINDS, len(KINDS)):
            times[kind].append(pair.step_s(kind, counts[kind]))
    return times


def report(times: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Return the efficiency of each kind, and the seconds of its step."""
    told = {}
    alone = np.array(times["alone"])
    for kind, steps in times.items():
        own = np.array(steps)
        by_wall, by_cpu = (ratio(alone[:, column], own[:, column], paired=True) for column in (0, 1))
        told[kind] = {
            "efficiency": [float(by_wall.point), float(by_wall.lo), float(by_wall.hi)],
            "alone_over_it_by_cpu_time": [float(by_cpu.point), float(by_cpu.lo), float(by_cpu.hi)],
            "step_ms": 1e3 * median(own[:, 0]),
            "least_step_ms": 1e3 * float(own[:, 0].min()),
            "step_cpu_ms": 1e3 * median(own[:, 1]),
            "least_step_cpu_ms": 1e3 * float(own[:, 1].min()),
        }
    return told


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256, help="samples a rank")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--slice-s", type=float, default=0.1)
    parser.add_argument("--free", action="store_true", help="no rank is bound to a core")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    pair = Pair(given.batch, [-1, -1] if given.free else [cores[0], cores[-1]])
    try:
        times = measure(pair, given.rounds, given.slice_s)
    finally:
        pair.close()
    asked = {"batch": given.batch, "rounds": given.rounds, "slice_s": given.slice_s, "bound": not given.free}
    tell(
        {"kinds": report(times), "wanted": {"together": WANTED}, **asked, **machine(), "rounds_s": times},
        given.out,
        long="rounds_s",
    )


if __name__ == "__main__":
    main()
