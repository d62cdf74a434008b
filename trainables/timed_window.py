"""Time as it is reported: monotonic, read when the device has finished its work.

Epochs are laps; throughput is measured over a window in steady state, which an epoch or further steps fill.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from trainables.process_group import RankGroup
from trainables.torch_private import pause_stream


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


CALIBRATION_CYCLES = 100_000_000  # about 50 ms of a GPU's clock


def device_pause(device: str, seconds: float) -> Callable[[], None]:
    """Return a function that makes the device pause for so long.

    A GPU pauses in its own stream, after the work given before and before the work that follows. The host goes on
    launching work meanwhile, and other streams are not held up. A CPU sleeps.
    """
    if not device.startswith("cuda"):
        return partial(time.sleep, seconds)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(2):  # the first one wakes the clocks
        begin.record()
        pause_stream(CALIBRATION_CYCLES)
        end.record()
        end.synchronize()
    cycles_per_s = 1e3 * CALIBRATION_CYCLES / begin.elapsed_time(end)
    return partial(pause_stream, round(seconds * cycles_per_s))


@dataclass(frozen=True, kw_only=True)
class Lap:
    """The training part of one epoch on the slowest rank, without evaluation."""

    seconds: float
    steps: int
    validation: Mapping[str, float] = field(default_factory=dict)  # validation metrics at the end of the epoch, by name


@dataclass(frozen=True, kw_only=True)
class Window:
    """Uninterrupted training in steady state, timed by the slowest rank."""

    seconds: float
    steps: int

    def figures(self, global_batch_size: int) -> dict[str, float]:
        """Return the window's columns; `samples_per_s` counts the distinct samples of all ranks."""
        samples_per_s = self.steps * global_batch_size / self.seconds
        return {"samples_per_s": samples_per_s, "window_s": self.seconds, "window_steps": self.steps}


def window_of_laps(laps: Sequence[Lap], *, least_s: float, least_steps: int) -> Window | None:
    """Return a whole lap at the median pace of those after the first, if each of them is long enough for a window.

    A shorter last lap is ignored.
    """
    # Where the batch does not divide an epoch, whole laps differ by a step.
    whole = [lap for lap in laps[1:] if lap.steps >= laps[0].steps - 1]
    if not whole or any(lap.seconds < least_s or lap.steps < least_steps for lap in whole):
        return None
    # The median, because other programs may slow a lap down.
    steps = whole[0].steps
    return Window(seconds=steps * median(lap.seconds / lap.steps for lap in whole), steps=steps)


def is_timed_by(laps: Sequence[Lap], *, least_s: float, least_steps: int) -> bool:
    """Return whether the window is certain: the second lap, or further steps if the first lap is too short."""
    # The first lap warms up, so that later laps are no longer than it.
    return len(laps) > 1 or laps[0].seconds < least_s or laps[0].steps < least_steps


SLICES = 4  # the minimal warm-up is divided into so many slices, to see whether the pace still changes

STEADY = 0.03  # how far the paces of two successive slices may differ in steady state

MAX_WARMUP = 2.0  # if the pace never settles, the warm-up ends after so many times its minimal length


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Untimed steps before a window, the same rule for new and reused processes.

    At least so many steps and seconds, and then until the paces of two successive slices, each a quarter of the
    minimal seconds, agree within `STEADY`; no longer than `MAX_WARMUP` times the minimal seconds.
    """

    steps: int
    seconds: float


def warm_up(step: Callable[[], None], *, clock: Clock, rank_group: RankGroup, warmup: Warmup) -> float:
    """Bring caches, allocators and the input pipeline into steady state; return the pace in seconds per step.

    All ranks take the same number of steps.
    """

    def pace_of(steps: int) -> float:
        started = clock.read()
        for _ in range(steps):
            step()
        # All ranks must take the same number of steps next, so that the slowest decides.
        (seconds,) = rank_group.largest(clock.read() - started)
        return seconds / steps

    steps = max(1, warmup.steps)
    pace = pace_of(steps)
    spent, is_steady = pace * steps, False
    while spent < warmup.seconds or (not is_steady and spent < MAX_WARMUP * warmup.seconds):
        steps = max(1, math.ceil(warmup.seconds / SLICES / pace)) if pace else 2 * steps
        latest = pace_of(steps)
        spent, is_steady, pace = spent + latest * steps, abs(latest - pace) <= STEADY * pace, latest
    return pace


OVERSHOOT = 1.05  # a window aims this far past its minimal length, so that one attempt usually suffices


def measure_window(
    step: Callable[[], None], *, clock: Clock, rank_group: RankGroup, least_s: float, least_steps: int, pace: float
) -> Window:
    """Take steps until a window is full. The clock is read at its ends, and again if the window was too short.

    `pace`, the seconds of a step in steady state, predicts how many steps fill the window. All ranks take the same
    number, because the slowest rank's time decides.
    """
    started, steps, seconds = clock.read(), 0, 0.0
    while seconds < least_s or steps < least_steps:
        pace = seconds / steps if steps else pace
        missing = math.ceil((least_s * OVERSHOOT - seconds) / pace) if pace else least_steps
        more = max(1, least_steps - steps, missing)
        for _ in range(more):
            step()
        steps += more
        (seconds,) = rank_group.largest(clock.read() - started)
    return Window(seconds=seconds, steps=steps)


def timings(
    laps: Sequence[Lap], window: Window | None, *, steps_per_epoch: float, global_batch_size: int
) -> dict[str, Any]:
    """Return the trial's times by column name.

    An epoch has a fraction of a step if the batch does not divide it.
    A training that ended within its first epoch has no `first_epoch_s`. Without a window there is no speed.
    """
    figures: dict[str, Any] = {}
    if len(laps) > 1 or laps[0].steps >= steps_per_epoch:
        figures["first_epoch_s"] = laps[0].seconds
    figures["train_s"] = math.fsum(lap.seconds for lap in laps)
    if window:
        figures["epoch_s"] = window.seconds / window.steps * steps_per_epoch
        figures |= window.figures(global_batch_size)
    return figures
