"""Which seeds the timing of a cell rests on: those with a valid timing, or all if no seed has one.

Cells that were only timed: after a step or two, an accuracy is that of the initial weights.

Launch-bound steps: GPUs wait for their processes, whose pace varies by chance.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from sweeps.status import Status

_RATES = ("first_epoch_s", "epoch_s", "train_s", "samples_per_s", "time_to_target_s", "mfu")
_DRAWS = ("energy_j", "energy_j_per_sample", "gpu_util", "gpu_util_spread", "power_w")
_STEP = "step_"
"""The parts of a step begin so, and end in the unit of seconds."""


_RATIOS = ("speedup", "efficiency", "mfu")
_OF_RATIO_SCALES = ("_s", "_w", "_j", "_j_per_sample")


def is_ratio_scaled(column: str) -> bool:
    """Whether it is a time, rate, power or energy, compared by ratios; parts of a step, which add up, are not."""
    return column in _RATIOS or (column.endswith(_OF_RATIO_SCALES) and not column.startswith(_STEP))


def is_timed(column: str) -> bool:
    """Whether something that disturbs a timing changes this figure."""
    return column in (*_RATES, *_DRAWS) or (column.startswith(_STEP) and column.endswith("_s"))


def is_valid(timing_valid: pd.Series[Any]) -> pd.Series[bool]:
    """For each trial or cell of such a column whether its timing is known to be valid."""
    return timing_valid.astype("boolean").fillna(False).astype(bool)


def is_invalid(timing_valid: pd.Series[Any]) -> pd.Series[bool]:
    """For each whether its timing is known to be invalid; without a timing it is neither."""
    return timing_valid.astype("boolean").eq(False).fillna(False).astype(bool)


def counts(trials: pd.DataFrame) -> pd.Series[Any]:
    """For each trial whether its timing counts: it is ok, and valid unless no ok seed of its cell is."""
    ok = trials["status"] == Status.OK.value
    valid = ok & is_valid(trials["timing_valid"])
    return ok & (valid | ~valid.groupby(trials["cell_id"]).transform("any"))


def timed_by_one_process(cells: pd.DataFrame) -> pd.Series[bool]:
    """For each cell of a summary whether one process timed all of several seeds: intervals do not cover its luck."""
    return (cells["n_processes"].eq(1) & cells["n_timed"].gt(1)).fillna(False).astype(bool)


def only_sound(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials, ok ones whose timing does not count without it: what was measured over time is NaN there.

    Accuracies, losses and memory stay: whoever else used the machine has not changed them. So do ends other than ok,
    and `wall_s`, which says how long the trial kept its devices, not how fast it was.
    """
    columns = [name for name in trials.columns if is_timed(name)]
    disturbed = (trials["status"] == Status.OK.value) & ~counts(trials)
    if not disturbed.any():
        return trials
    return trials.assign(**{name: pd.to_numeric(trials[name], errors="coerce").mask(disturbed) for name in columns})


FEWEST_STEPS = 10
"""Optimizer steps; after fewer, an accuracy says nothing about batches or learning rates."""


def is_untrained(cells: pd.DataFrame) -> pd.Series[Any]:
    """For each cell of a summary whether a trial took fewer than FEWEST_STEPS; not where that is unknown."""
    return cells["steps"] < FEWEST_STEPS


MANY = 0.1
"""Share of a step; from here on the pace depends on how fast a process launches (docs/findings.md, E1)."""


def launch_share(step_s: pd.Series[Any], step_host_s: pd.Series[Any], cell_id: pd.Series[Any]) -> pd.Series[Any]:
    """The share of a step in which GPUs wait for launches, for each cell: the mean over its trials."""
    return (step_host_s / step_s).groupby(cell_id).mean()


def launch_bound(cells: pd.DataFrame) -> pd.Series[Any]:
    """For each cell, whether that is a tenth of a step or more; False if unknown."""
    return cells["launch_share"] >= MANY
