"""What a step's time is made of, so that it can be told why more ranks are not as many times as fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from trainables.clock import Clock, Window
from trainables.inputs.pause import pause
from trainables.process_group import Gang
from trainables.step.stopwatch import Parts, Stopwatch

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
