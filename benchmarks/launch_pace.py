"""Measure how much processes differ that take the same launch-bound steps: by process, by core, by moment.

    python -m benchmarks.launch_pace [--device cuda] [--batch 128] [--processes 12] [--slices 12] [--out FILE]

All processes train the same model, and take turns: one works for half a second while the others are stopped. Every
second process is bound to a core, spread over the machine; the system places the others. Two in four run the backward
pass in the thread of the forward pass, where PyTorch by default uses another thread on GPUs. Figures are on logarithms:
the spread between processes (mean of their slices), the spread between slices of a process, and the speed ratio of the
bound processes and of those with one thread, with 95% intervals.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from benchmarks.figures import machine, tell
from benchmarks.warm_slices import Asked, Process
from orchestrator.statistics.intervals import ratio


def places(processes: int) -> list[set[int]]:
    """Return the cores that each process may use."""
    cores = sorted(os.sched_getaffinity(0))
    held = np.linspace(0, len(cores) - 1, (processes + 1) // 2).round().astype(int)
    return [{cores[held[number // 2]]} if number % 2 == 0 else set(cores) for number in range(processes)]


def paces(asked: Asked, where: list[set[int]], one_thread: list[bool], slices: int) -> np.ndarray:
    """Return steps per second, processes × slices."""
    processes: list[Process] = []
    try:
        for cores, one in zip(where, one_thread, strict=True):
            processes.append(Process(asked, earlier=0, cores=cores, backward_thread=not one))
        for process in processes:
            process.reach_window()
        turns = [[process.slice() for process in processes] for _ in range(slices)]
    finally:
        for process in processes:
            process.end()
    return np.array(turns).T


def faster(means: np.ndarray, chosen: np.ndarray) -> list[float]:
    """Return the speed ratio of the chosen processes to the others, with its 95% interval."""
    speedup = ratio(np.exp(means[chosen]), np.exp(means[~chosen]), paired=False)
    return [float(speedup.point), float(speedup.lo), float(speedup.hi)]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--slices", type=int, default=12)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    where = places(given.processes)
    one_thread = [number % 4 >= 2 for number in range(given.processes)]
    step_rates = paces(Asked(device=given.device, batch=given.batch), where, one_thread, given.slices)
    logs = np.log(step_rates)
    means, is_held = logs.mean(axis=1), np.array([len(cores) == 1 for cores in where])
    drift = logs.mean(axis=0)
    figures = {
        "between_processes_sd": float(means.std(ddof=1)),
        "fastest_over_slowest": float(np.exp(means.max() - means.min())),
        "between_moments_sd": float(drift.std(ddof=1)),
        "rest_sd": float((logs - means[:, None] - drift[None] + logs.mean()).std(ddof=1)),
        "held_over_free": faster(means, is_held),
        "one_thread_over_two": faster(means, np.array(one_thread)),
        "one_thread": one_thread,
        "cores": [sorted(cores) if len(cores) == 1 else None for cores in where],
        "steps_per_s": step_rates.tolist(),
        "batch": given.batch,
    }
    tell(figures | machine(given.device), given.out, long="steps_per_s")


if __name__ == "__main__":
    main()
