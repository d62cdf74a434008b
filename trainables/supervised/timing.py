"""How fast a trial trains, and what its time is spent on.

At the end of a training `Timing` takes the window that throughput is measured over: an epoch if epochs are long enough,
otherwise further steps. It then splits a step of the window into data, host, compute, communication and imbalance.
`epoch_split` splits an epoch's seconds for its row of the learning curve, at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from trainables.process_group import RankGroup
from trainables.step.graphed_step import EAGER_STEPS
from trainables.step.stopwatch import Parts, Stopwatch
from trainables.supervised.loop import Epoch, Loop
from trainables.supervised.settings import TrainingSettings
from trainables.timed_window import (
    Clock,
    Lap,
    Warmup,
    Window,
    device_pause,
    measure_window,
    timings,
    warm_up,
    window_of_laps,
)


class Timing:
    """The times of a replica at the end of its training; all ranks measure together."""

    def __init__(self, loop: Loop, settings: TrainingSettings) -> None:
        self._loop, self._replica, self._settings = loop, loop.replica, settings

    def figures(self, laps: Sequence[Lap], epochs: Sequence[Epoch], models: int) -> dict[str, Any]:
        """Return the trial's times by column name; `models` independent models train at the same time.

        `epochs` are those of this process, the last of the `laps`. A step is split only for a single model.
        """
        if self._loop.at.times > 1:  # no window is like another: take all epochs but the first
            steady = epochs[1:] or epochs
            seconds = math.fsum(epoch.seconds for epoch in steady)
            steps = sum(epoch.steps for epoch in steady)
            samples = sum(epoch.samples for epoch in steady)
            if not steps:  # the training had ended before this process began
                return self._timings(laps, None, models)
            figures = self._timings(laps, Window(seconds=seconds, steps=steps), models)
            epoch_s = seconds / samples * self._replica.inputs.feed.epoch_samples
            return figures | {"samples_per_s": samples * models / seconds, "epoch_s": epoch_s}
        window, parts = self._window(laps, epochs)
        if window is None:
            return self._timings(laps, None, models)
        figures = self._timings(laps, window, models)
        if models > 1:
            return figures
        # Last of all: without the exchange the models diverge, and nothing may be measured of them afterwards.
        loop = self._loop
        split = StepSplit(loop.step, self._replica.stopwatch, clock=loop.clock, rank_group=loop.rank_group)
        if self._replica.captures:
            return figures | split.captured(window, parts)
        with loop.context.phase("measurement"):
            if loop.rank_group.world_size == 1:
                return figures | split.single(window, parts)
            return figures | split.several(window, self._replica.step.without_exchange())

    def _timings(self, laps: Sequence[Lap], window: Window | None, models: int) -> dict[str, Any]:
        feed = self._replica.inputs.feed
        return timings(
            laps,
            window,
            steps_per_epoch=feed.epoch_samples / feed.batch.global_batch_size,
            global_batch_size=feed.batch.global_batch_size * models,
        )

    def _window(self, laps: Sequence[Lap], epochs: Sequence[Epoch]) -> tuple[Window | None, Parts]:
        """Return the window of throughput, and the parts of its steps: an epoch, or further steps after a warm-up.

        There are no further steps if another trial has timed them; then the window is None.
        """
        # An epoch of the training costs nothing more; further steps are taken only if none is long enough.
        least_s, least_steps = self._settings.window_s, self._settings.window_steps
        # Laps before a restart were timed by another process, perhaps on another machine.
        own = laps[len(laps) - len(epochs) :]
        if window := window_of_laps(own, least_s=least_s, least_steps=least_steps):
            return window, mean_parts(epochs[1:], window.steps)
        if self._settings.timed_with:
            return None, Parts()
        step, clock, rank_group = self._loop.step, self._loop.clock, self._loop.rank_group
        # Captured steps first run uncaptured: these must not count as warm-up.
        steps = self._settings.warmup_steps + (EAGER_STEPS if self._replica.captures else 0)
        warmup = Warmup(steps=steps, seconds=self._settings.warmup_s)
        with self._loop.context.phase("warmup"):
            pace = warm_up(step, clock=clock, rank_group=rank_group, warmup=warmup)
        with self._loop.context.phase("window"):
            rank_group.meet()
            before = self._replica.stopwatch.parts()
            window = measure_window(
                step, clock=clock, rank_group=rank_group, least_s=least_s, least_steps=least_steps, pace=pace
            )
            return window, self._replica.stopwatch.parts() - before


def mean_parts(epochs: Sequence[Epoch], steps: int) -> Parts:
    """Return the parts of so many average steps of these epochs."""
    taken = sum(epoch.steps for epoch in epochs) or 1
    return Parts(
        data_s=sum(epoch.parts.data_s for epoch in epochs) / taken * steps,
        exchange_s=sum(epoch.parts.exchange_s for epoch in epochs) / taken * steps,
        step_s=sum(epoch.parts.step_s for epoch in epochs) / taken * steps,
    )


def epoch_split(epoch: Epoch, *, on_gpu: bool) -> dict[str, float]:
    """Return columns of the epoch's row that sum up to its seconds, as rank 0 sees them.

    On CPUs: `data_s`, `compute_s`, `communication_s` (including the wait for slower ranks), and `rest_s`, the loop
    itself. On a GPU compute and communication overlap, and only the device's wait for data is known, in epochs with
    enough steps.
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


SPLIT_STEPS = 10
SPLIT_S = 0.3
MAX_SPLIT_STEPS = 300
"""A split of several ranks takes at least so many steps and seconds, but no more than the maximum of steps."""

DEVICE_TRIES, LONG_STEP_S = 5, 0.1  # tries of a measurement; two are enough for a long step, which varies less
MAX_PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Mean seconds of one rank's steps without the exchange of gradients."""

    step_s: float
    data_s: float
    host_s: float  # on CPUs the loop around the step; on GPUs the time in which the device waits for kernel launches

    @property
    def compute_s(self) -> float:
        """The rest: the model's own work."""
        return max(0.0, self.step_s - self.data_s - self.host_s)

    def columns(self, *, step_s: float, communication_s: float = 0.0, imbalance_s: float = 0.0) -> dict[str, float]:
        """Return the columns of the trial's row."""
        return {
            "step_s": step_s,
            "step_data_s": self.data_s,
            "step_host_s": self.host_s,
            "step_compute_s": self.compute_s,
            "step_communication_s": communication_s,
            "step_imbalance_s": imbalance_s,
        }


class StepSplit:
    """Splits the time of a step. Takes further steps after everything else, in which the ranks' models diverge."""

    def __init__(self, take: Callable[[], None], stopwatch: Stopwatch, *, clock: Clock, rank_group: RankGroup) -> None:
        self._take, self._stopwatch, self._clock, self._rank_group = take, stopwatch, clock, rank_group

    def single(self, window: Window, parts: Parts) -> dict[str, float]:
        """Return the split of a single rank's step, whose window had these parts."""
        own = self._parts(window.seconds, parts, window.steps)
        return own.columns(step_s=window.seconds / window.steps)

    def captured(self, window: Window, parts: Parts) -> dict[str, float]:
        """Return the wait for data of captured steps, of the (lower) median rank; nothing else of them is known."""
        # A graph is one launch, within which the host can time nothing.
        waits = sorted(self._rank_group.each(parts.data_s / window.steps))
        return {"step_s": window.seconds / window.steps, "step_data_s": waits[(len(waits) - 1) // 2]}

    def several(self, window: Window, without_exchange: AbstractContextManager[None]) -> dict[str, float]:
        """Return the split of several ranks' steps, from some steps that each rank takes without the exchange.

        What a step of the window takes longer than the slowest rank's is communication. Data, host and compute are
        those of the (lower) median rank; imbalance is what the slowest rank takes longer, which is `slowest_rank`.
        """
        pace = window.seconds / window.steps
        steps = min(max(SPLIT_STEPS, math.ceil(SPLIT_S / pace)), MAX_SPLIT_STEPS)
        with without_exchange:
            # The first steps after the switch are not steady yet.
            for _ in range(2):
                self._take()
            self._rank_group.meet()
            before, started = self._stopwatch.parts(), self._clock.read()
            for _ in range(steps):
                self._take()
            seconds = self._clock.read() - started
            own = self._parts(seconds, self._stopwatch.parts() - before, steps)
        every = [self._rank_group.each(value) for value in (own.step_s, own.data_s, own.host_s)]
        ranks = [StepParts(step_s=s, data_s=d, host_s=h) for s, d, h in zip(*every, strict=True)]
        # The median rank stands for a usual one: an average would mix in the slowest.
        by_pace = sorted(ranks, key=lambda rank: rank.step_s)
        typical, slowest = by_pace[(len(by_pace) - 1) // 2], by_pace[-1]
        return typical.columns(
            step_s=pace,
            communication_s=max(0.0, pace - slowest.step_s),
            imbalance_s=slowest.step_s - typical.step_s,
        ) | {"slowest_rank": ranks.index(slowest)}

    def _parts(self, seconds: float, parts: Parts, steps: int) -> StepParts:
        step_s, data_s = seconds / steps, parts.data_s / steps
        if self._stopwatch.on_gpu:
            host_s = max(0.0, step_s - data_s - device_step_s(self._take, step_s, clock=self._clock))
        else:
            host_s = max(0.0, (seconds - parts.step_s) / steps)
        return StepParts(step_s=step_s, data_s=data_s, host_s=host_s)


def device_step_s(take: Callable[[], None], step_s: float, *, clock: Clock) -> float:
    """Return the GPU's time for a step whose kernels are all launched before the first starts: the best of a few.

    The GPU pauses first, for longer than the launches take.
    """
    times: list[float] = []
    pause = device_pause("cuda", min(2 * step_s, MAX_PAUSE_S))
    for _ in range(DEVICE_TRIES if step_s < LONG_STEP_S else 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pause()
        begin.record()
        take()
        end.record()
        clock.read()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times)
