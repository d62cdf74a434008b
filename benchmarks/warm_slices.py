"""Compare the steps of a process that has trained before with those of a new one, slice by slice on one core.

    python -m benchmarks.warm_slices [--device cuda] [--batch 128] [--rounds 10] [--together 1] [--slices 40]
                                           [--out FILE.json]

In each round one process first trains several trials. Then both begin the same trial. In its timed window they take
turns: one is stopped while the other works for half a second, in alternating order, so that drift of the machine
affects both alike. A round's ratio is the geometric mean of kept / new. The result is the mean of all rounds, with a
95% interval by Student's t on logs, because processes differ by chance in memory placement. Goal: within 2% of 1.
`--together` rounds start at once, each on one core, and also take turns: with enough cores, many rounds take little
longer to start than one. `warm_vs_fresh.py` compares whole sweeps; this script compares the processes alone, with
much smaller intervals.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.figures import machine, tell
from orchestrator.statistics.intervals import ratio
from sweeps.trial import RankRequest
from tests.unit.trainables.ranks import request

WANTED = 0.02
SLICE_S, SETTLE_S = 0.5, 0.05
EARLIER = 3
"""Trials that a kept process has had."""
START_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The trial that both processes run."""

    device: str
    batch: int

    def request(self, window_s: float) -> RankRequest:
        """Return the request to a rank."""
        timed = {"val_fraction": 0.0, "window_s": window_s, "window_steps": 20}
        config = {
            "data": {"name": "digits"},
            "model": {"name": "small_cnn"},
            "budget": {"epochs": 2},
            "trainable": timed,
        }
        gpus = 0 if self.device == "cpu" else 1
        return request(shares=(self.batch,), lr=0.02, config=config, device=self.device, gpus_per_rank=gpus)


class Process:
    """A process that trains in its timed window, or is stopped."""

    def __init__(self, asked: Asked, *, earlier: int, cores: set[int], backward_thread: bool = True) -> None:
        spawn = get_context("spawn")
        self._steps, self._in_window = spawn.Value("Q", 0, lock=False), spawn.Event()
        given = (asked, earlier, cores, backward_thread, self._steps, self._in_window)
        self._process = spawn.Process(target=_train, args=given, daemon=True)
        self._process.start()

    def reach_window(self) -> None:
        """Wait until its last trial is being timed, and stop it there."""
        if not self._in_window.wait(START_S):
            raise TimeoutError(f"no window after {START_S} s")
        self._signal(signal.SIGSTOP)

    def slice(self) -> float:
        """Return steps per second."""
        self._signal(signal.SIGCONT)
        time.sleep(SETTLE_S)
        began, steps = time.perf_counter(), self._steps.value
        time.sleep(SLICE_S)
        taken, seconds = self._steps.value - steps, time.perf_counter() - began
        self._signal(signal.SIGSTOP)
        return float(taken) / seconds

    def end(self) -> None:
        """End it: its window would last for an hour."""
        self._process.kill()
        self._process.join()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid
        os.kill(self._process.pid, number)


def _train(asked: Asked, earlier: int, cores: set[int], backward_thread: bool, steps: Any, in_window: Any) -> None:
    """Train some trials of minimal length, and one whose window does not end."""
    os.sched_setaffinity(0, cores)
    torch.autograd.set_multithreading_enabled(backward_thread)
    from orchestrator.telemetry.sampler import Sampler, Sampling, Watched
    from orchestrator.telemetry.sources import WINDOW
    from trainables import rank
    from trainables.supervised import loop

    take = loop.Loop.step

    def counted(training: loop.Loop) -> None:
        take(training)
        steps.value += 1

    loop.Loop.step = counted  # type: ignore[method-assign]
    for window_s in [SLICE_S] * earlier + [3600.0]:
        given = asked.request(window_s)
        with Sampler(Sampling(), Watched.of(given)) as sampler:

            def observe(phase: str, sampler: Sampler = sampler, is_last: bool = window_s > SLICE_S) -> None:
                sampler.observe(phase)
                if is_last and phase == WINDOW:
                    in_window.set()

            rank.run(given, lambda row: None, lambda: False, observe)


class Pair:
    """A kept and a new process on one core: a round."""

    def __init__(self, asked: Asked, core: int) -> None:
        self.kept, self.new = (Process(asked, earlier=earlier, cores={core}) for earlier in (EARLIER, 0))
        self._logs: list[float] = []

    def reach_window(self) -> None:
        """Wait for both."""
        for process in (self.new, self.kept):
            process.reach_window()

    def slice(self) -> None:
        """Run one slice of each, the other one first each time."""
        turn = (self.kept, self.new) if len(self._logs) % 2 else (self.new, self.kept)
        speeds = {process: process.slice() for process in turn}
        self._logs.append(math.log(speeds[self.kept] / speeds[self.new]))

    def ratio(self) -> float:
        """Return kept / new, the geometric mean of all slices."""
        return math.exp(fmean(self._logs))

    def end(self) -> None:
        """End both."""
        self.kept.end()
        self.new.end()


def compare(asked: Asked, slices: int, cores: Sequence[int]) -> list[float]:
    """Run one round for each of the cores; return the ratios of their speeds."""
    pairs = [Pair(asked, core) for core in cores]
    try:
        for pair in pairs:
            pair.reach_window()
        for _ in range(slices):
            for pair in pairs:
                pair.slice()
        return [pair.ratio() for pair in pairs]
    finally:
        for pair in pairs:
            pair.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--together", type=int, default=1, help="rounds that start at once; at most one a core")
    parser.add_argument("--slices", type=int, default=40, help="of each process in a round")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    asked, cores = Asked(device=chosen.device, batch=chosen.batch), sorted(os.sched_getaffinity(0))
    rounds: list[float] = []
    while len(rounds) < chosen.rounds:
        together = cores[-min(chosen.together, chosen.rounds - len(rounds)) :]
        rounds += compare(asked, chosen.slices, together)
        cores = cores[-1:] + cores[:-1]
        print(f"rounds so far: kept / new {', '.join(f'{quotient:.4f}' for quotient in rounds)}", flush=True)
    interval = ratio(np.array(rounds), np.ones(len(rounds)), paired=True)
    told = {
        "kept_over_new": [float(interval.point), float(interval.lo), float(interval.hi)],
        "wanted_within": WANTED,
        "rounds": rounds,
        "together": chosen.together,
        "slices": chosen.slices,
        "batch": chosen.batch,
        "earlier_trials": EARLIER,
    }
    tell(told | machine(chosen.device), chosen.out)


if __name__ == "__main__":
    main()
