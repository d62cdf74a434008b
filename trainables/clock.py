"""Time as it is reported: monotonic, and only after the device has done what it was given."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from trainables.process_group import Gang

OVERSHOOT = 1.05
"""A window aims this far past its least length, so that one try mostly suffices."""

SLICES = 4
"""Into which the least warm-up is divided, to see whether the pace still changes."""

SETTLED = 0.03
"""How far the paces of two successive slices may differ in steady state."""

LONGEST_WARMUP = 2.0
"""Where the pace never settles, the warm-up ends at so many times its least length."""


class Clock:
    """Reads seconds of a monotonic clock, from an arbitrary zero, with the device idle."""

    def __init__(self, device: str, monotonic: Callable[[], float] = time.perf_counter) -> None:
        self._on_gpu = device.startswith("cuda")
        self._monotonic = monotonic

    def read(self) -> float:
        """Wait for the device, then read the clock."""
        if self._on_gpu:
            torch.cuda.synchronize()
        return self._monotonic()


@dataclass(frozen=True, kw_only=True)
class Lap:
    """The training part of one epoch, the slowest rank's, without evaluation."""

    seconds: float
    steps: int
    val_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True)
class Window:
    """Uninterrupted training in steady state, timed by the slowest rank."""

    seconds: float
    steps: int


def window_of_laps(laps: Sequence[Lap], *, least_s: float, least_steps: int) -> Window | None:
    """The median lap from the second on, where each of these is a window by itself; a shorter last lap is left out."""
    whole = [lap for lap in laps[1:] if lap.steps == laps[0].steps]
    if not whole or any(lap.seconds < least_s or lap.steps < least_steps for lap in whole):
        return None
    return Window(seconds=median(lap.seconds for lap in whole), steps=whole[0].steps)


def is_timed_by(laps: Sequence[Lap], *, least_s: float, least_steps: int) -> bool:
    """Whether further laps would not change which window is taken: the second lap, or one that follows the training.

    The first lap warms up, so that none is shorter where it is too short for a window.
    """
    return len(laps) > 1 or laps[0].seconds < least_s or laps[0].steps < least_steps


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Untimed steps before a window, the same rule for new and kept processes.

    At least so many steps and seconds; from there on until the paces of two successive slices, each a quarter of the
    least seconds, agree within `SETTLED`, but no longer than `LONGEST_WARMUP` times the least seconds.
    """

    steps: int
    seconds: float


def warm_up(step: Callable[[], None], *, clock: Clock, gang: Gang, warmup: Warmup) -> float:
    """Bring caches, allocators and the input pipeline into steady state; returns its pace in seconds a step.

    All ranks take the same steps, because they go by the slowest rank's time.
    """
    steps = max(1, warmup.steps)
    pace = _time(step, steps, clock, gang)
    spent, settled = pace * steps, False
    while spent < warmup.seconds or (not settled and spent < LONGEST_WARMUP * warmup.seconds):
        steps = max(1, math.ceil(warmup.seconds / SLICES / pace)) if pace else 2 * steps
        latest = _time(step, steps, clock, gang)
        spent, settled, pace = spent + latest * steps, abs(latest - pace) <= SETTLED * pace, latest
    return pace


def measure_window(
    step: Callable[[], None], *, clock: Clock, gang: Gang, least_s: float, least_steps: int, pace: float
) -> Window:
    """Take steps until a window is full. The device is waited for at its ends only, save where the guess fell short.

    `pace`, the seconds of a step in steady state, tells how many steps fill the window: all ranks take the same number,
    because they go by the slowest rank's time.
    """
    started, steps, seconds = clock.read(), 0, 0.0
    while seconds < least_s or steps < least_steps:
        pace = seconds / steps if steps else pace
        missing = math.ceil((least_s * OVERSHOOT - seconds) / pace) if pace else least_steps
        more = max(1, least_steps - steps, missing)
        for _ in range(more):
            step()
        steps += more
        (seconds,) = gang.largest(clock.read() - started)
    return Window(seconds=seconds, steps=steps)


def _time(step: Callable[[], None], steps: int, clock: Clock, gang: Gang) -> float:
    started = clock.read()
    for _ in range(steps):
        step()
    (seconds,) = gang.largest(clock.read() - started)
    return seconds / steps


def timings(
    laps: Sequence[Lap], window: Window, *, steps_per_epoch: int, global_batch_size: int, target: float | None
) -> dict[str, Any]:
    """The trial's times by column name; `samples_per_s` counts the distinct samples of all ranks.

    A training that ended within its first epoch has no `first_epoch_s`.
    """
    whole = len(laps) > 1 or laps[0].steps >= steps_per_epoch
    first = {"first_epoch_s": laps[0].seconds} if whole else {}
    return {
        **first,
        "epoch_s": window.seconds / window.steps * steps_per_epoch,
        "train_s": math.fsum(lap.seconds for lap in laps),
        "samples_per_s": window.steps * global_batch_size / window.seconds,
        "window_s": window.seconds,
        "window_steps": window.steps,
    } | _time_to(target, laps)


def _time_to(target: float | None, laps: Sequence[Lap]) -> dict[str, float]:
    if target is None:
        return {}
    for count, lap in enumerate(laps, start=1):
        if lap.val_accuracy is not None and lap.val_accuracy >= target:
            return {"time_to_target_s": math.fsum(each.seconds for each in laps[:count])}
    return {}
