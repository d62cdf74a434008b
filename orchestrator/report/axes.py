"""The axes of pictures: which scale, from where to where, with which ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from orchestrator.report.picture import Axis

_MOST_TICKS = 6


def power_axis(label: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis with a tick at (some of) the values that there are: GPUs and batches grow by doubling."""
    ticks = sorted(set(map(float, values)))
    if len(ticks) == 1:
        return Axis(label=label, scale="log2", ticks=tuple(ticks), lo=ticks[0] / 1.5, hi=ticks[0] * 1.5)
    every = math.ceil(len(ticks) / _MOST_TICKS)
    margin = (ticks[-1] / ticks[0]) ** 0.06
    return Axis(label=label, scale="log2", ticks=tuple(ticks[::every]), lo=ticks[0] / margin, hi=ticks[-1] * margin)


def decade_axis(label: str, least: float, most: float) -> Axis:
    """A logarithmic axis of what spans a factor of ten or so, with ticks at 1, 2 and 5, or at every so many decades."""
    lo, hi = least / (most / least) ** 0.05, most * (most / least) ** 0.05
    decades = range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)
    steps = (1, 2, 5) if hi / lo < 300 else (1,)
    every = math.ceil(len(decades) / _MOST_TICKS)
    ticks = [step * 10.0**power for power in decades[::every] for step in steps]
    return Axis(label=label, scale="log10", ticks=tuple(tick for tick in ticks if lo <= tick <= hi), lo=lo, hi=hi)


def speedup_axis(cells: pd.DataFrame) -> Axis:
    """Logarithmic where GPUs span a factor of 8 or more, so that small counts are not crowded together."""
    known = cells[cells["speedup"].notna()]
    gpus, speed = known["gpus"], known["speedup"]
    ideal = float((speed / known["efficiency"]).max())  # above a baseline that may have more GPUs than the fewest
    top = 1.15 * max(ideal, float(speed.max()))
    if gpus.max() / gpus.min() < 8:
        return Axis(label="speed-up", lo=0, hi=top)
    least = min(1.0, float(speed[speed > 0].min()))
    ticks = tuple(2.0**power for power in range(math.floor(math.log2(least)), math.ceil(math.log2(top)) + 1))
    return Axis(label="speed-up", scale="log2", ticks=ticks, lo=least / 1.15, hi=top)


def seconds_axis(cells: pd.DataFrame) -> Axis:
    """Of `time_to_target_s`: logarithmic where it spans more than a factor of 10."""
    seconds = cells["time_to_target_s"].dropna()
    if seconds.max() / seconds.min() > 10:
        return decade_axis("time to target [s]", float(seconds.min()), float(seconds.max()))
    return Axis(label="time to target [s]", lo=0, hi=1.1 * float(seconds.max()))


def clipped_axis(cells: pd.DataFrame, column: str) -> Axis:
    """As far as the points go and half as far again, however wide the intervals are."""
    points = cells[column].dropna()
    if points.empty:
        return Axis(label=column)
    low, high = float(points.min()), float(points.max())
    room = 0.5 * (high - low) or 0.05
    lowest, highest = cells[f"{column}_lo"].min(), cells[f"{column}_hi"].max()
    lo = max(low - room, min(low, lowest)) if lowest == lowest else low - room
    hi = min(high + room, max(high, highest)) if highest == highest else high + room
    edge = 0.03 * (hi - lo)
    if 0 <= low and high <= 1:
        return Axis(label=column, lo=max(lo - edge, -0.01), hi=min(hi + edge, 1.01))
    return Axis(label=column, lo=lo - edge, hi=hi + edge)


def epoch_axis(epochs: Sequence[float]) -> Axis:
    """With a tick at every epoch where there are few: half an epoch is no place to look at."""
    known = sorted(set(map(float, epochs)))
    if len(known) > _MOST_TICKS or not all(each.is_integer() for each in known):
        return Axis(label="epoch")
    room = 0.05 * (known[-1] - known[0]) or 0.5
    return Axis(label="epoch", ticks=tuple(known), lo=known[0] - room, hi=known[-1] + room)


def loss_axis(points: pd.DataFrame) -> Axis:
    """Logarithmic where the losses are above 0 and span more than a factor of 5."""
    low, high = points["loss"].min(), points["loss"].max()
    if low > 0 and high / low > 5:
        return decade_axis("training loss", float(low), float(high))
    return Axis(label="training loss", hi=float(high) + 0.05 * float(high - low), lo=min(0.0, float(low)))
