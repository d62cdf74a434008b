"""Numbers from a trial's metrics, which a damaged journal or a user's program may have filled with anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sweeps.axes import is_number

_NEARLY = 0.1
"""An epoch whose end is as near to the target, in epochs, reached it."""


def metric_value(metrics: Mapping[str, Any], name: str) -> float | None:
    """One of a trial's metrics as a number; None if it was not measured or is not a finite number."""
    value = metrics.get(name)
    try:
        return float(value) if is_number(value) and math.isfinite(value) else None
    except OverflowError:  # a damaged journal may hold any number
        return None


def tokens_per_s(metrics: Mapping[str, Any]) -> float | None:
    """Return a trial's throughput in tokens, computed from samples if it reports their `sequence_length`."""
    samples, length = metric_value(metrics, "samples_per_s"), metric_value(metrics, "sequence_length")
    return samples * length if samples is not None and length is not None else metric_value(metrics, "tokens_per_s")


def samples_to_target(metrics: Mapping[str, Any]) -> float | None:
    """Return a trial's samples up to the end of the epoch that reached the target; None if none did.

    If the trial reports a time alone, this includes the first epoch's compilation and warm-up. Therefore epochs are
    counted, by the mean length of the later ones, and the first counts as one; the target may lie within an epoch. If a
    trial reports no epochs, its rate is used instead, and start-up counts as samples.
    """
    target_s, rate = metric_value(metrics, "time_to_target_s"), metric_value(metrics, "samples_per_s")
    if target_s is None:
        return None
    epochs, samples = metric_value(metrics, "epochs"), metric_value(metrics, "samples")
    first_s, train_s = metric_value(metrics, "first_epoch_s"), metric_value(metrics, "train_s")
    reached = metric_value(metrics, "epochs_to_target")
    if epochs and samples:
        if reached is None and train_s and epochs <= 1:
            reached = epochs * target_s / train_s
        elif reached is None and first_s and train_s and train_s > first_s:
            reached = 1 + max(0.0, (target_s - first_s) / (train_s - first_s) * (epochs - 1))
            if abs(reached - round(reached)) < _NEARLY:
                reached = round(reached)
        if reached is not None:
            return min(reached, epochs) * samples / epochs
    return None if rate is None else target_s * rate


def time_to_target_s(metrics: Mapping[str, Any]) -> float | None:
    """Return a trial's training time to the target: its samples up to there at the steady rate.

    Without a rate it has the time that passed, in which the first trial of a process also warms it up.
    """
    samples, rate = samples_to_target(metrics), metric_value(metrics, "samples_per_s")
    return samples / rate if samples is not None and rate else metric_value(metrics, "time_to_target_s")
