"""Compare the cost of a no-op trial on the Ray back end, on plain Ray Tune and with torchrun.

    python -m benchmarks.trial_overhead overhead.json [--trials 60] [--tune-trials 20] [--torchrun-trials 10]

Overhead per trial = (wall − Σ training time ÷ slots) ÷ trials; a no-op trains for 0 s. Wall time includes the start
of every process, but not the start of the Ray cluster. "Plain Tune" is a function trainable that reports once, with
default settings. For two ranks it holds the CPUs but has no second process, while the back end and torchrun run an
all-reduce over gloo. Goals: at most 0.1 of plain Tune, and 0.05 of torchrun.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune

from benchmarks.figures import machine, tell
from orchestrator.backends.ray.backend import RayBackend
from orchestrator.schedule.cluster import Node
from orchestrator.schedule.queue import TrialQueue
from orchestrator.store.record import TrialOutcome
from sweeps.status import Status
from sweeps.trial import TrialSpec
from tests.contract.trials import Recorder, request, trial

CPUS = 2
WANTED = {"tune": 0.1, "torchrun": 0.05}
ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


class Ends(Recorder):
    """A listener that notes when each trial ended."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []
        self.train_s = 0.0

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> bool:
        if outcome.status is not Status.OK:
            raise RuntimeError(f"{trial.trial_id}: {outcome.note}")
        self.at.append(time.monotonic())
        self.train_s += outcome.metrics["train_s"]
        return False


def ours(backend: RayBackend, ranks: int, count: int) -> dict[str, float]:
    """Return seconds per trial, over all and for the warm ones (from the first end to the last)."""
    trials = [
        dataclasses.replace(trial(f"{ranks}-{number}", "", ranks=ranks), trainable="trainables.noop:train")
        for number in range(count)
    ]
    ends = Ends()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as results:
        (Path(results) / "trials").mkdir()
        backend.run(TrialQueue(trials), Path(results), ends)
    wall_s = time.monotonic() - started
    slots = CPUS // ranks
    return {
        "trials": count,
        "overhead_s": (wall_s - ends.train_s / slots) / count,
        "warm_overhead_s": (ends.at[-1] - ends.at[0]) / (count - 1),
    }


def plain_tune(ranks: int, count: int) -> dict[str, float]:
    """Return seconds per trial of a function trainable with default settings, with all slots in use."""
    group = tune.PlacementGroupFactory([{"CPU": 1}] * ranks)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as storage:
        tune.Tuner(
            tune.with_resources(_report, group),
            tune_config=tune.TuneConfig(num_samples=count),
            run_config=tune.RunConfig(storage_path=storage),
        ).fit()
    return {"trials": count, "overhead_s": (time.monotonic() - started) / count}


def _report(config: dict[str, Any]) -> None:
    tune.report({"train_s": 0.0})


def torchrun(ranks: int, count: int) -> dict[str, float]:
    """Return seconds per trial when torchrun starts its ranks."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "all_reduce.py"
        script.write_text(ALL_REDUCE)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", script]
        started = time.monotonic()
        for _ in range(count):
            subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return {"trials": count, "overhead_s": (time.monotonic() - started) / count}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("json", type=Path, help="where the figures go")
    arguments.add_argument("--trials", type=int, default=60, help="through our back end")
    arguments.add_argument("--tune-trials", type=int, default=20, help="through plain Tune, which is slow")
    arguments.add_argument("--torchrun-trials", type=int, default=10, help="through torchrun, which is slow")
    given = arguments.parse_args()
    backend = RayBackend(request(), Node(name="here", cpus=CPUS, gpus=0))
    figures: dict[str, Any] = machine()
    try:
        for ranks in (1, 2):
            figures[f"{ranks} ranks"] = {
                "ours": ours(backend, ranks, given.trials),
                "tune": plain_tune(ranks, given.tune_trials),
                "torchrun": torchrun(ranks, given.torchrun_trials),
            }
    finally:
        backend.close()
    tell(figures, given.json)
    show(figures)


def show(figures: Mapping[str, Any]) -> None:
    for ranks in ("1 ranks", "2 ranks"):
        own = figures[ranks]["ours"]
        print(f"{ranks}: ours {own['overhead_s']:.3f} s a trial of {own['trials']}, warm {own['warm_overhead_s']:.3f}")
        for way, wanted in WANTED.items():
            other = figures[ranks][way]
            ratio = own["overhead_s"] / other["overhead_s"]
            print(f"  {ratio:.3f} (wanted {wanted}) of {way}: {other['overhead_s']:.2f} s of {other['trials']}")


if __name__ == "__main__":
    main()
