"""Measure what the hook in a command's processes adds to each step: with it and without it, slice by slice in turn.

    python -m benchmarks.hook_cost [--device cuda] [--step-ms 2.8] [--rounds 60] [--slice-s 0.5] [--out FILE.json]

One process loads the modules of `trainables/command/hook` by hand, and switches its changes to PyTorch on and off
between slices. Each case trains an MLP whose depth is chosen so that a step takes about `--step-ms`. The device is
waited for at the ends of a slice only. `added_us` is the median of the differences between the two slices of a round,
per step, with a 95% interval; `share` is the same relative to the step without the hook. `of_the_fastest_us` is the
difference of the fastest slices, which other programs disturb least. `cpu` has all three for the CPU time of the
process. Goal: at most 1% of a step of 2.8 ms, which is 28 us. It needs torch only; 5 minutes.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.utils.data.dataloader as loaders
from torch import nn
from torch.optim import optimizer as optimizers

from benchmarks.figures import machine, tell

HOOK = Path(__file__).parents[1] / "trainables/command/hook"
CHANGED = [(loaders._BaseDataLoaderIter, name) for name in ("__next__", "_next_index", "_reset")]
CHANGED += [(nn.Module, "train"), (nn.Module, "eval"), (torch, "save")]
"""Attributes that the hook replaces."""
WIDTH, BATCH, TOKENS = 64, 32, 128

CASES = {
    "batch in memory": "only the optimizer's steps",
    "loader": "a DataLoader of PyTorch in the main process",
    "tokens": "the same, with input_ids and an attention mask",
    "train() in each step": "as in Hugging Face's Trainer",
    "eval() of a part in each step": "a frozen part of the model",
}


class Switch:
    """The hook's changes to PyTorch, which can be switched on and off."""

    def __init__(self, folder: str) -> None:
        self._without = [getattr(owner, name) for owner, name in CHANGED]
        os.environ["SWEEP_HOOK"] = folder
        sys.path.insert(0, str(HOOK))
        spec = importlib.util.spec_from_file_location("sitecustomize", HOOK / "sitecustomize.py")
        assert spec is not None and spec.loader is not None
        hook = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(hook)
        for name, (watcher, function) in hook.WATCHED.items():
            if name in sys.modules:
                getattr(importlib.import_module(watcher), function)(sys.modules[name])
        self._with = [getattr(owner, name) for owner, name in CHANGED]
        self._steps = dict(optimizers._global_optimizer_post_hooks)
        self.training = importlib.import_module("sweep_training").TRAINING

    def turn(self, on: bool) -> None:
        """Switch the hook on or off."""
        optimizers._global_optimizer_post_hooks.clear()
        if on:
            optimizers._global_optimizer_post_hooks.update(self._steps)
        for (owner, name), function in zip(CHANGED, self._with if on else self._without, strict=True):
            setattr(owner, name, function)

    def counts_another_training(self) -> None:
        """Begin anew, as in another process."""
        self.training.__init__()


class Steps:
    """A training in one of the cases."""

    def __init__(self, case: str, device: str, depth: int) -> None:
        torch.manual_seed(0)
        self._case, self._device = case, device
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(depth)]
        self._model = nn.Sequential(*layers).to(device)
        self._frozen = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self._batch = torch.randn(BATCH, WIDTH, device=device)

    def batches(self, count: int) -> Iterable[Any]:
        """Return an epoch of so many batches."""
        if self._case == "loader":
            data = torch.utils.data.TensorDataset(torch.randn(count * BATCH, WIDTH))
            return torch.utils.data.DataLoader(data, BATCH)
        if self._case == "tokens":
            ids = torch.zeros(TOKENS, dtype=torch.long)
            rows = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}] * (count * BATCH)
            return torch.utils.data.DataLoader(rows, BATCH)  # type: ignore[arg-type]
        return [self._batch] * count

    def take(self, batches: Iterable[Any]) -> None:
        """Train an epoch."""
        for batch in batches:
            if self._case == "train() in each step":
                self._model.train()
            if self._case == "eval() of a part in each step":
                self._frozen.eval()
            images = batch[0].to(self._device) if self._case == "loader" else self._batch
            self._optimizer.zero_grad()
            self._model(images).square().mean().backward()
            self._optimizer.step()


def timed(steps: Steps, count: int, wait: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a step."""
    batches = steps.batches(count)
    wait()
    began, cpu_began = time.perf_counter(), time.process_time()
    steps.take(batches)
    wait()
    return (time.perf_counter() - began) / count, (time.process_time() - cpu_began) / count


def interval(values: list[float]) -> list[float]:
    """Return the median and the bounds of its 95% interval, by order statistics."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    lo, hi = math.floor(len(values) / 2 - half), math.ceil(len(values) / 2 + half)
    return [median(ordered), ordered[max(0, lo)], ordered[min(len(ordered) - 1, hi)]]


def added(with_hook: list[float], without: list[float]) -> dict[str, Any]:
    """Return the step without the hook, and what the hook adds, absolute and relative."""
    step_s = median(without)
    difference = interval([a - b for a, b in zip(with_hook, without, strict=True)])
    return {
        "step_us": round(1e6 * step_s, 2),
        "added_us": [round(1e6 * seconds, 2) for seconds in difference],
        "share": [round(seconds / step_s, 5) for seconds in difference],
        "of_the_fastest_us": round(1e6 * (min(with_hook) - min(without)), 2),
    }


def measure(case: str, switch: Switch, given: argparse.Namespace) -> dict[str, Any]:
    """Measure one case."""
    wait = torch.cuda.synchronize if given.device.startswith("cuda") else lambda: None
    switch.turn(False)
    depth = 2
    while timed(Steps(case, given.device, depth), 20, wait)[0] < 0.9e-3 * given.step_ms:
        depth += max(1, depth // 4)
    steps = Steps(case, given.device, depth)
    timed(steps, 50, wait)
    count = max(20, round(given.slice_s / timed(steps, 50, wait)[0]))
    switch.counts_another_training()
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in range(given.rounds + 1):
        for on in random.Random(number).sample([True, False], 2):
            switch.turn(on)
            taken = timed(steps, count, wait)
            if number:  # the first round warms up
                times[on].append(taken)
    walls, cpus = ([[pair[part] for pair in times[on]] for on in (True, False)] for part in (0, 1))
    counted = switch.training.counts.whole.steps
    assert counted == count * (given.rounds + 1), f"{counted} steps of {count * (given.rounds + 1)} were counted"
    return {"case": CASES[case], "depth": depth, "slice_steps": count, **added(*walls), "cpu": added(*cpus)}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--step-ms", type=float, default=2.8)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--slice-s", type=float, default=0.5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        switch = Switch(folder)
        cases = {name: measure(name, switch, given) for name in CASES}
        switch.counts_another_training()  # nothing to write at the exit
    told = {name: value for name, value in vars(given).items() if name not in ("device", "out")}
    tell({"cases": cases, **told, **machine(given.device)}, given.out)


if __name__ == "__main__":
    main()
