"""How long a trained model's steps take, and what of them: further steps are taken for it.

An epoch's seconds by what they went into.

What a step's time is made of, so that it can be told why more ranks are not as many times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from trainables.clock import Clock, Lap, Warmup, Window, measure_window, timings, warm_up, window_of_laps
from trainables.context import Context
from trainables.inputs.pause import pause
from trainables.process_group import Gang
from trainables.step.graphed_step import WARMUP_STEPS
from trainables.step.stopwatch import Parts, Stopwatch
from trainables.step.training_step import TrainingStep
from trainables.supervised.loop import Epoch, Loop
from trainables.supervised.replica import Replica
from trainables.supervised.settings import Settings


def split_of(epoch: Epoch, *, on_gpu: bool) -> dict[str, float]:
    """Columns of the epoch's row, rank 0's view; together they are its seconds.

    `data_s`, `compute_s`, `communication_s` (waiting for slower ranks is in it) and `rest_s`: the loop itself. On a GPU
    compute and communication run into each other, and only the device's waiting for data is told apart: of an epoch
    with enough steps to know it, else nothing is.
    """
    parts = epoch.parts
    if parts.untimed:
        return {}
    if on_gpu:
        return {"data_s": parts.data_s, "rest_s": max(0.0, epoch.seconds - parts.data_s)}
    known_s = parts.data_s + parts.compute_s + parts.exchange_s
    return {
        "data_s": parts.data_s,
        "compute_s": parts.compute_s,
        "communication_s": parts.exchange_s,
        "rest_s": max(0.0, epoch.seconds - known_s),
    }


def mean_parts(epochs: Sequence[Epoch], steps: int) -> Parts:
    """The mean parts of so many steps of these epochs."""
    taken = sum(epoch.steps for epoch in epochs) or 1
    return Parts(
        data_s=sum(epoch.parts.data_s for epoch in epochs) / taken * steps,
        exchange_s=sum(epoch.parts.exchange_s for epoch in epochs) / taken * steps,
        step_s=sum(epoch.parts.step_s for epoch in epochs) / taken * steps,
    )


SPLIT_STEPS = 10
SPLIT_S = 0.3
MOST_SPLIT_STEPS = 300
"""A split of several ranks takes at least so many steps and so many seconds, but no more than the most."""

DEVICE_TRIES = 5
LONGEST_PAUSE_S = 0.2
"""Longer than any step's launches take."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Mean seconds of one rank's steps, without those of the exchange."""

    step_s: float
    data_s: float
    host_s: float
    """On CPUs what the loop does around the step; on GPUs the device's waiting for launches."""

    @property
    def compute_s(self) -> float:
        """Everything else: the model's own work."""
        return max(0.0, self.step_s - self.data_s - self.host_s)


class StepSplit:
    """Takes further steps, after everything else: the ranks' models part in it."""

    def __init__(self, take: Callable[[], None], stopwatch: Stopwatch, *, clock: Clock, gang: Gang) -> None:
        self._take, self._stopwatch, self._clock, self._gang = take, stopwatch, clock, gang

    def alone(self, window: Window, parts: Parts) -> dict[str, float]:
        """Of a single rank, whose window had these parts."""
        own = self._parts(window.seconds, parts, window.steps)
        return _named(own, step_s=window.seconds / window.steps, communication_s=0.0, imbalance_s=0.0)

    def undivided(self, window: Window, parts: Parts) -> dict[str, float]:
        """Of steps that are captured: the (lower) median rank's waiting for data in its window, and no other part."""
        waits = sorted(self._gang.each(parts.data_s / window.steps))
        return {"step_s": window.seconds / window.steps, "step_data_s": waits[(len(waits) - 1) // 2]}

    def together(self, window: Window, without_exchange: AbstractContextManager[None]) -> dict[str, float]:
        """Of several: each takes some steps that wait for nobody, and what the window's took longer is exchange.

        Data, host and compute are the (lower) median rank's, imbalance is what the slowest takes longer;
        `slowest_rank` says which it is.
        """
        pace = window.seconds / window.steps
        steps = min(max(SPLIT_STEPS, math.ceil(SPLIT_S / pace)), MOST_SPLIT_STEPS)
        with without_exchange:
            for _ in range(2):
                self._take()
            self._gang.meet()
            before, started = self._stopwatch.parts(), self._clock.read()
            for _ in range(steps):
                self._take()
            seconds = self._clock.read() - started
            own = self._parts(seconds, self._stopwatch.parts() - before, steps)
        every = [self._gang.each(value) for value in (own.step_s, own.data_s, own.host_s)]
        ranks = [StepParts(step_s=s, data_s=d, host_s=h) for s, d, h in zip(*every, strict=True)]
        by_pace = sorted(ranks, key=lambda rank: rank.step_s)
        typical, slowest = by_pace[(len(by_pace) - 1) // 2], by_pace[-1]
        return _named(
            typical,
            step_s=pace,
            communication_s=max(0.0, pace - slowest.step_s),
            imbalance_s=slowest.step_s - typical.step_s,
        ) | {"slowest_rank": ranks.index(slowest)}

    def _parts(self, seconds: float, parts: Parts, steps: int) -> StepParts:
        step_s, data_s = seconds / steps, parts.data_s / steps
        if self._stopwatch.on_gpu:
            host_s = max(0.0, step_s - data_s - self._device_step_s(step_s))
        else:
            host_s = max(0.0, (seconds - parts.step_s) / steps)
        return StepParts(step_s=step_s, data_s=data_s, host_s=host_s)

    def _device_step_s(self, step_s: float) -> float:
        """The GPU's time for a step whose kernels were all launched before it may begin: the shortest of a few."""
        times: list[float] = []
        wait = pause("cuda", min(2 * step_s, LONGEST_PAUSE_S))
        for _ in range(DEVICE_TRIES):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            wait()
            begin.record()
            self._take()
            end.record()
            self._clock.read()
            times.append(begin.elapsed_time(end) / 1e3)
        return min(times)


def _named(own: StepParts, *, step_s: float, communication_s: float, imbalance_s: float) -> dict[str, float]:
    return {
        "step_s": step_s,
        "step_data_s": own.data_s,
        "step_host_s": own.host_s,
        "step_compute_s": own.compute_s,
        "step_communication_s": communication_s,
        "step_imbalance_s": imbalance_s,
    }


class Timing:
    """Of a replica at the end of its training; all ranks ask together."""

    def __init__(
        self, loop: Loop, replica: Replica, settings: Settings, *, clock: Clock, gang: Gang, context: Context
    ) -> None:
        self._loop, self._replica, self._settings = loop, replica, settings
        self._clock, self._gang, self._context = clock, gang, context

    def figures(self, laps: Sequence[Lap], epochs: Sequence[Epoch], models: int) -> dict[str, Any]:
        """The trial's times by column name, of so many models together; `epochs` are the last of the `laps`.

        Those before were an earlier process's. What a step's time is made of is told of a single model only.
        """
        feed = self._replica.inputs.feed
        grew = self._loop.at.times > 1
        window, parts = (_whole_training(epochs), Parts()) if grew else self._window(laps, epochs)
        found = timings(
            laps,
            window,
            steps_per_epoch=feed.steps_per_epoch,
            global_batch_size=feed.batch.global_batch_size * models,
            target=self._settings.target_accuracy,
        )
        if grew:
            return found | _mean_figures(epochs, models)
        return found | (self._step_parts(window, parts) if models == 1 else {})

    def _window(self, laps: Sequence[Lap], epochs: Sequence[Epoch]) -> tuple[Window, Parts]:
        """The window that throughput is measured over, and what its steps are made of: epochs, where they are long."""
        least_s, least_steps = self._settings.window_s, self._settings.window_steps
        own = laps[len(laps) - len(epochs) :]
        if window := window_of_laps(own, least_s=least_s, least_steps=least_steps):
            return window, mean_parts(epochs[1:], window.steps)
        step, clock, gang = self._loop.step, self._clock, self._gang
        steps = self._settings.warmup_steps + (WARMUP_STEPS if self._replica.captures else 0)
        warmup = Warmup(steps=steps, seconds=self._settings.warmup_s)
        with self._context.phase("warmup"):
            pace = warm_up(step, clock=clock, gang=gang, warmup=warmup)
        with self._context.phase("window"):
            gang.meet()
            before = self._replica.stopwatch.parts()
            window = measure_window(step, clock=clock, gang=gang, least_s=least_s, least_steps=least_steps, pace=pace)
            return window, self._replica.stopwatch.parts() - before

    def _step_parts(self, window: Window, parts: Parts) -> dict[str, float]:
        """What a step's time is made of; of captured steps, which cannot be taken apart, only the wait for data."""
        step = self._replica.step
        split = StepSplit(self._loop.step, self._replica.stopwatch, clock=self._clock, gang=self._gang)
        if not isinstance(step, TrainingStep):
            return split.undivided(window, parts) if self._replica.captures else {}
        with self._context.phase("probe"):
            if self._gang.world_size == 1:
                return split.alone(window, parts)
            return split.together(window, step.without_exchange())


def _whole_training(epochs: Sequence[Epoch]) -> Window:
    """Where batches grew no window is like another: all epochs from the second on, or the only one."""
    steady = epochs[1:] or epochs
    return Window(seconds=math.fsum(epoch.seconds for epoch in steady), steps=sum(epoch.steps for epoch in steady))


def _mean_figures(epochs: Sequence[Epoch], models: int) -> dict[str, Any]:
    """`samples_per_s` and `epoch_s` over the same."""
    steady, window = epochs[1:] or epochs, _whole_training(epochs)
    samples = sum(epoch.samples for epoch in steady) * models
    return {"samples_per_s": samples / window.seconds, "epoch_s": window.seconds / len(steady)}
