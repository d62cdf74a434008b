"""Says which figures of trials and cells count.

`telemetry.timing_gate` decides whether a timing is valid; the frames have its decision as `timing_valid`. Timed figures
of a cell come from the seeds with a valid timing, or from all seeds if no seed has one. Accuracies after a few steps
are those of the initial weights. In launch-bound steps GPUs wait for their processes, whose pace varies by chance.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from orchestrator.analysis.work import is_short
from sweeps.status import Status

_TIMES = ("first_epoch_s", "epoch_s", "train_s", "time_to_target_s", "total_s")
_RATES = ("samples_per_s", "tokens_per_s", "mfu", "mfu_nominal")
_OF_DEVICES = ("energy_j", "energy_j_per_sample", "gpu_util", "gpu_util_spread", "power_w")
_OF_WHOLE_WORK = ("train_s", "total_s", "energy_j")
"""Figures of the whole training, which a trial that did less than its work does not have."""
_STEP = "step_"
"""The columns of the parts of a step start with this and end in `_s`."""

_RATIOS = ("speedup", "efficiency", "mfu", "mfu_nominal")
_RATIO_ENDINGS = ("_s", "_w", "_j", "_j_per_sample")


def is_ratio_scaled(column: str) -> bool:
    """Return whether a column is compared by ratios: a time, rate, power or energy, but no part of a step."""
    return column in _RATIOS or (column.endswith(_RATIO_ENDINGS) and not column.startswith(_STEP))


def is_timed(column: str) -> bool:
    """Return whether a disturbed timing changes this column."""
    return column in (*_TIMES, *_RATES, *_OF_DEVICES) or (column.startswith(_STEP) and column.endswith("_s"))


def is_valid(timing_valid: pd.Series[Any]) -> pd.Series[bool]:
    """Return for each trial or cell whether its timing is known to be valid."""
    return pd.Series(timing_valid.to_numpy(dtype="bool", na_value=False), timing_valid.index)


def is_invalid(timing_valid: pd.Series[Any]) -> pd.Series[bool]:
    """Return for each trial or cell whether its timing is known to be invalid; without a timing it is neither."""
    return pd.Series(~timing_valid.to_numpy(dtype="bool", na_value=True), timing_valid.index)


def timing_counts(trials: pd.DataFrame) -> pd.Series[Any]:
    """Return for each trial whether its timing counts: it is ok, and valid if any ok seed of its cell is."""
    ok = trials["status"] == Status.OK.value
    # A cell whose timings are all invalid keeps its figures, which tables mark, instead of having none.
    valid = ok & is_valid(trials["timing_valid"])
    return ok & (valid | ~valid.groupby(trials["cell_id"]).transform("any"))


def timed_by_one_process(cells: pd.DataFrame) -> pd.Series[bool]:
    """Return for each cell whether one process timed several seeds: intervals do not cover how processes differ.

    An unknown number of processes counts as one.
    """
    return (cells["n_processes"].fillna(1).eq(1) & cells["n_timed"].gt(1)).fillna(False).astype(bool)


def with_valid_timings(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials without timings that do not count: their timed figures are NaN.

    Trials that did less than their work have no time for it, but a rate. Accuracies, losses, memory and `wall_s`
    stay, and so do trials that are not ok.
    """
    timed = [name for name in trials.columns if is_timed(name)]
    disturbed = (trials["status"] == Status.OK.value) & ~timing_counts(trials)
    if disturbed.any():
        trials = trials.assign(**{name: pd.to_numeric(trials[name], errors="coerce").mask(disturbed) for name in timed})
    # Less work takes less time: such a trial would look fast.
    if "work_done" in trials and (short := is_short(trials["work_done"])).any():
        trials = trials.assign(**{name: trials[name].mask(short) for name in _OF_WHOLE_WORK})
    return trials


FEWEST_STEPS = 10
"""After fewer optimizer steps, an accuracy says nothing about batches or learning rates."""


def is_untrained(cells: pd.DataFrame) -> pd.Series[Any]:
    """Return for each cell whether a trial took fewer than FEWEST_STEPS steps; False if unknown."""
    return cells["steps"] < FEWEST_STEPS


LAUNCH_BOUND = 0.1
"""Share of a step spent on launches from which the pace depends on the process (docs/findings.md, E1)."""


def launch_bound(cells: pd.DataFrame) -> pd.Series[Any]:
    """Return for each cell whether its launch share is at least LAUNCH_BOUND; False if unknown."""
    return cells["launch_share"] >= LAUNCH_BOUND
