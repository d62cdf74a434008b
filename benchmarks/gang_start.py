"""What does a gang's start cost, and when is it paid? Trials that each need processes of their own, one after another.

    python -m benchmarks.gang_start [--device cuda] [--gpus 4] [--trial-s 6] [--cpus 64] [--out FILE.json]

Every trial holds more than half of the GPUs (logical ones, unless `--device cuda`), each in another shape. So none
takes the processes of the one before. For each start: how long the GPUs were held by nobody since the last trial's
end, how long by processes that do not compute yet, and what those did; and the CPU seconds for each gang, of the whole
machine, which should be quiet. A trial imports torch, makes a context on its device, and sleeps. It takes a minute.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

from benchmarks.figures import machine, tell
from orchestrator.backends.backend import ClusterSpec
from orchestrator.backends.ray.backend import RayBackend
from orchestrator.schedule.queue import TrialQueue
from orchestrator.store.history import Durations
from orchestrator.store.record import TrialOutcome
from sweeps.status import Status
from sweeps.trial import Gang, TrialSpec
from tests.contract.trials import Recorder, trial


class Clock(Recorder):
    """A listener that notes when it hears of each start and end."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[float, float, TrialSpec, TrialOutcome]] = []
        self._began_s = 0.0

    def started(self, trial: TrialSpec) -> None:
        self._began_s = time.time()

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        assert outcome.status is Status.OK, outcome.trace
        self.heard.append((self._began_s, time.time(), trial, outcome))
        print(f"{trial.label}: {outcome.metrics['computes'] - self._began_s:.1f} s until it computed", file=sys.stderr)


def shapes(gpus: int) -> list[tuple[int, int]]:
    """Ranks × GPUs a rank, no two of which fit beside one another."""
    every = [(ranks, each) for ranks in range(1, gpus + 1) for each in range(1, gpus + 1)]
    return [(ranks, each) for ranks, each in every if gpus < 2 * ranks * each <= 2 * gpus]


def trials(device: str, seconds: float, gpus: int, cpus_per_rank: int) -> list[TrialSpec]:
    """One of each shape."""
    made = []
    for number, (ranks, each) in enumerate(shapes(gpus)):
        one = trial(f"{number}", "quick", ranks=ranks, timing="device", seconds=seconds)
        gang = Gang(ranks=ranks, gpus_per_rank=each, cpus_per_rank=cpus_per_rank)
        target = "benchmarks.sleeping_training:train"
        axes = {"gpus": ranks * each, "cell": number}
        one = dataclasses.replace(one, gpus=ranks * each, gang=gang, axes=axes, device=device, trainable=target)
        made.append(one)
    return made


def cpu_s() -> float:
    """Seconds that this machine's cores have computed, for whomever."""
    used = psutil.cpu_times()
    return float(used.user + used.nice + used.system)


def phases(clock: Clock) -> list[dict[str, Any]]:
    """Of every start but the first, in seconds."""
    told = []
    for (_, ended, *_), (began, _, one, outcome) in zip(clock.heard, clock.heard[1:], strict=False):
        at = outcome.metrics
        told.append(
            {
                "ranks": one.gang.ranks,
                "idle_s": began - ended,
                "held_until_it_computes_s": at["computes"] - began,
                "of_it_processes_and_imports_s": at["called"] - began,
                "of_it_device_s": at["computes"] - at["called"],
            }
        )
    return told


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--trial-s", type=float, default=6.0, help="how long a trial computes")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--gangs", type=int, help="at most so many of them; the first one's start is not told")
    parser.add_argument("--cpus", type=int, default=os.cpu_count(), help="cores that Ray is told of")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cpus = max(given.gpus, given.cpus)
    todo = trials(given.device, given.trial_s, given.gpus, cpus // given.gpus)[: given.gangs]
    clock, known = Clock(), Durations()
    for one in todo:
        known.add(one.cell_id, one.axes, given.trial_s)
    backend = RayBackend(ClusterSpec(dashboard=False, cpus=cpus, gpus=given.gpus))
    try:
        before_s = cpu_s()
        with tempfile.TemporaryDirectory() as results:
            backend.run(TrialQueue(todo, durations=known), Path(results), clock)
        spent_s = cpu_s() - before_s
    finally:
        backend.close()
    told = phases(clock)
    held_s = sum((ended - began) for began, ended, *_ in clock.heard[1:])
    starting_s = sum(one["held_until_it_computes_s"] for one in told)
    figures = {
        "starting_share_of_held": starting_s / held_s,
        "mean": {name: round(mean(one[name] for one in told), 2) for name in told[0]},
        "cpu_s_a_gang": spent_s / len(clock.heard),
        "starts": told,
        **machine(given.device),
    }
    tell(figures, given.out, long="starts")


if __name__ == "__main__":
    main()
