"""What telemetry costs: throughput of the same training with and without its thread, slice by slice in turn.

    python -m tests.benchmarks.telemetry_cost [--pairs 60] [--seconds 1] [--hz 5] [--out FILE.json]

Two neighbouring slices, one with the sampler at work and one without, in an order that turns, make a ratio; told are
the geometric mean of the ratios on / off and its 95% interval (Student's t on logs). Slices are timed by the process's
CPU seconds as well: on a machine where others work, wall clocks tell more of them than of the telemetry.
Wanted: at least 0.995.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orchestrator.statistics import ratio
from orchestrator.telemetry_sampler import Sampler, Sampling

WANTED = 0.995


class Training:
    """Short steps, as of small networks, whose host is busy all the time."""

    def __init__(self) -> None:
        self._model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._images, self._targets = torch.randn(128, 64), torch.randint(0, 10, (128,))

    def slice(self, seconds: float) -> tuple[float, float]:
        """Steps a second of wall time, and of the process's CPU time, telemetry's thread included."""
        began, cpu_began, steps = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < seconds:
            for _ in range(20):
                torch.nn.functional.cross_entropy(self._model(self._images), self._targets).backward()
                self._optimizer.step()
                self._optimizer.zero_grad()
            steps += 20
        return steps / (time.perf_counter() - began), steps / (time.process_time() - cpu_began)


def measure(pairs: int, seconds: float, hz: float) -> dict[str, Any]:
    """The ratios of on to off."""
    training = Training()
    training.slice(2 * seconds)
    rates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    request = {"device": "cpu", "rank": 0, "gpus_per_rank": 0}
    for number in range(pairs):
        for watched in (True, False) if number % 2 else (False, True):
            with Sampler.on(Sampling(hz=hz), request) if watched else nullcontext():
                rates[watched].append(training.slice(seconds))
    found = {}
    for column, name in enumerate(("wall", "cpu")):
        on, off = (np.array([rate[column] for rate in rates[watched]]) for watched in (True, False))
        interval = ratio(on, off, paired=True)
        found[f"on_over_off_by_{name}_time"] = [float(interval.point), float(interval.lo), float(interval.hi)]
        found[f"median_on_over_off_by_{name}_time"] = math.exp(float(np.median(np.log(on / off))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--hz", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(chosen.pairs, chosen.seconds, chosen.hz) | {
        "wanted": WANTED,
        "hz": chosen.hz,
        "pairs": chosen.pairs,
        "slice_s": chosen.seconds,
        "host": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(figures, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
