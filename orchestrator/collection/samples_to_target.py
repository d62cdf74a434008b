"""The samples that a trial took to its target, and its start-up time, from what it reports."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orchestrator.statistics.means import Array


def samples_to_target(trials: pd.DataFrame) -> Array:
    """Samples trained on up to the end of the epoch that reached the target, by row; NaN where none did.

    The seconds to the target include the compiling and warming up of the first epoch, in which no samples pass.
    Therefore epochs are counted, by the mean length of the later ones; the first counts as one, however long it took.
    If a trial reports no epochs (such as a user's script), its rate is used instead, and start-up counts as samples.
    """
    to_target_s, later_s = _numbers(trials, "time_to_target_s"), _later_epoch_s(trials)
    epochs, first_s = _numbers(trials, "epochs"), _numbers(trials, "first_epoch_s")
    with np.errstate(invalid="ignore", divide="ignore"):
        place = 1 + np.where(epochs > 1, np.maximum(0.0, (to_target_s - first_s) / later_s), 0.0)
        whole = np.minimum(np.round(place), epochs)
        count = np.where(np.abs(place - epochs) < np.abs(place - whole), epochs, whole)  # the last may be a part of one
        by_epochs = np.where(np.isnan(to_target_s), np.nan, count * _numbers(trials, "samples") / epochs)
        by_rate = to_target_s * _numbers(trials, "samples_per_s")
    return np.where(np.isfinite(by_epochs), by_epochs, by_rate)


def start_up_s(trials: pd.DataFrame) -> Array:
    """How much longer the first epoch took than the later ones in the mean, by row; NaN with fewer than two epochs."""
    return _numbers(trials, "first_epoch_s") - _later_epoch_s(trials)


def _later_epoch_s(trials: pd.DataFrame) -> Array:
    epochs = _numbers(trials, "epochs")
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (_numbers(trials, "train_s") - _numbers(trials, "first_epoch_s")) / (epochs - 1)
    return np.where((epochs > 1) & (mean > 0), mean, np.nan)


def _numbers(trials: pd.DataFrame, column: str) -> Array:
    if column not in trials:
        return np.full(len(trials), np.nan)
    return pd.to_numeric(trials[column], errors="coerce").to_numpy(dtype="float64")
