"""Measure the cost of telemetry: throughput of the same training with and without it, slice by slice in turn.

    python -m benchmarks.telemetry_cost [--pairs 60] [--seconds 1] [--hz 5] [--device cuda [--batch 128]]

Two neighbouring slices, one with the sampler, in alternating order, make a ratio. The result is the geometric mean of
on / off with its 95% interval (Student's t on logs), by wall time and by the process's CPU seconds, which other work
on the machine disturbs less. Goal: at least 0.995. On a GPU, steps are a resnet18's: at batch 128 its host is busy
launching kernels, at 1024 it waits for the device. There the script also measures the cost of each source beside the
training, and the device's energy over 12 s by counter and by integrated power. Goal: within 3% of each other.
"""

from __future__ import annotations

import argparse
import math
import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.figures import machine, tell
from orchestrator.statistics.intervals import ratio
from orchestrator.telemetry.gpu import Gpus
from orchestrator.telemetry.sampler import Sampler, Sampling, Watched
from orchestrator.telemetry.sources import TRAINING
from tests.unit.trainables.ranks import request
from trainables import models

WANTED = 0.995


class Training:
    """Short steps, whose host is always busy."""

    def __init__(self, device: str, batch: int) -> None:
        self._device = device
        if device == "cpu":
            model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
            self._images = torch.randn(batch, 64)
        else:
            model = models.build({"name": "resnet18"}, input_shape=(3, 32, 32), num_classes=10)
            self._images = torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
        self._model = model.to(device, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._targets = torch.randint(0, 10, (batch,), device=device)

    def slice(self, seconds: float) -> tuple[float, float]:
        """Return steps per second of wall time, and of the process's CPU time, including telemetry's thread."""
        self._wait()
        began, cpu_began, steps = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < seconds:
            for _ in range(20):
                with torch.autocast(self._device, torch.bfloat16, enabled=self._device != "cpu"):
                    loss = torch.nn.functional.cross_entropy(self._model(self._images), self._targets)
                loss.backward()
                self._optimizer.step()
                self._optimizer.zero_grad()
            steps += 20
            self._wait()
        return steps / (time.perf_counter() - began), steps / (time.process_time() - cpu_began)

    def _wait(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize()


def measure(training: Training, device: str, pairs: int, seconds: float, hz: float) -> dict[str, Any]:
    """Return the ratios of on to off."""
    training.slice(2 * seconds)
    rates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    asked = request(device=device, gpus_per_rank=1)
    for number in range(pairs):
        for watched in (True, False) if number % 2 else (False, True):
            with Sampler(Sampling(hz=hz), Watched.of(asked)) if watched else nullcontext() as sampler:
                if sampler:
                    sampler.observe(TRAINING)  # as trials do that say where they are; else workers are looked for
                rates[watched].append(training.slice(seconds))
    ratios = {}
    for column, name in enumerate(("wall", "cpu")):
        on, off = (np.array([rate[column] for rate in rates[watched]]) for watched in (True, False))
        interval = ratio(on, off, paired=True)
        ratios[f"on_over_off_by_{name}_time"] = [float(interval.point), float(interval.lo), float(interval.hi)]
        ratios[f"median_on_over_off_by_{name}_time"] = math.exp(float(np.median(np.log(on / off))))
    return ratios


def sources(training: Training, seconds: float) -> dict[str, dict[str, float]]:
    """Return the wall and CPU time in ms of reading each of the first GPU's sources in a thread beside the training."""
    gpu = Gpus(1, os.environ.get("CUDA_VISIBLE_DEVICES"))
    spent: dict[str, list[tuple[float, float]]] = {}
    ends = threading.Event()

    def look() -> None:
        while not ends.wait(0.02):
            for source in gpu.taps["gpu0"].sources:
                began, cpu_began = time.perf_counter(), time.thread_time()
                source.read()
                taken = time.perf_counter() - began, time.thread_time() - cpu_began
                spent.setdefault(source.name, []).append(taken)

    gpu.taps["gpu0"].read()  # what is not offered is left out from here on
    looker = threading.Thread(target=look)
    looker.start()
    training.slice(seconds)
    ends.set()
    looker.join()
    return {
        name: {"wall_ms": 1e3 * median(wall for wall, _ in taken), "cpu_ms": 1e3 * median(cpu for _, cpu in taken)}
        for name, taken in spent.items()
    }


def energy(training: Training, seconds: float, hz: float) -> dict[str, float]:
    """Return the energy of the first GPU under load in J: by its counter, and by integrating its power over the same
    time.
    """
    training.slice(2.0)
    with Sampler(Sampling(hz=hz), Watched.of(request(device="cuda", gpus_per_rank=1))) as sampler:
        training.slice(seconds)
    series = next(columns for device, columns in sampler.readings().series.items() if device != "cpu")
    time_s, power_w, energy_j = (np.array(series[name]) for name in ("time_s", "power_w", "energy_j"))
    first, *_, last = np.flatnonzero(np.isfinite(energy_j))  # the counter is read now and then only
    between = slice(first, last + 1)
    integrated_j = float(np.trapezoid(power_w[between], time_s[between]))
    figures = {"counter_j": float(energy_j[last] - energy_j[first]), "integrated_j": integrated_j}
    return figures | {"integrated_over_counter": figures["integrated_j"] / figures["counter_j"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--hz", type=float, default=5.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    training = Training(chosen.device, chosen.batch)
    figures = measure(training, chosen.device, chosen.pairs, chosen.seconds, chosen.hz)
    if chosen.device == "cuda":
        figures |= {"energy_of_12_s": energy(training, 12.0, chosen.hz)}
        figures["of_each_source"] = sources(training, 5.0)
    figures |= {
        "batch": chosen.batch,
        "wanted": WANTED,
        "hz": chosen.hz,
        "pairs": chosen.pairs,
        "slice_s": chosen.seconds,
    }
    tell(figures | machine(chosen.device), chosen.out)


if __name__ == "__main__":
    main()
