"""Which cells may be chosen, and which speeds may be stated: the two rules that no recommendation breaks.

No choice without the metric (`has_metric`), and no speed without a valid timing (`speed_is_known`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator.analysis.objective import Measure
from orchestrator.analysis.validity import is_invalid, is_valid
from orchestrator.analysis.work import is_short
from orchestrator.config.request import Terms
from orchestrator.decision.recommendation import Remark, remark
from orchestrator.store.record import EARLY_STOP, PHASES
from orchestrator.telemetry.timing_gate import Fault
from sweeps.lr_rule import SAME_AT_REFERENCE
from sweeps.status import Status


def has_metric(cells: pd.DataFrame, trials: pd.DataFrame, *, is_named: bool) -> pd.Series[bool]:
    """Return for each cell whether all of its ok seeds have a score, or nothing asks for one.

    No cell is chosen without the metric where others have it: a seed without it has usually diverged. Where no ok seed
    has one, cells are chosen by speed alone, unless the metric `is_named` by the user.
    """
    ok = trials[trials["status"] == Status.OK.value]
    lacking = ok.loc[ok["score"].isna(), "cell_id"]
    return ~cells["cell_id"].isin(lacking) | (not is_named and bool(ok["score"].isna().all()))


def speed_is_known(cells: pd.DataFrame, cell_id: str, baseline_cell_id: str | None) -> bool:
    """Return whether a speed of this cell may be stated: its own timing and that of its baseline, if any, are valid.

    No speed is stated without valid timings: what disturbs a timing rarely slows all cells alike.
    """
    return {cell_id, baseline_cell_id or cell_id} <= _timed(cells)


def speeds_known(cells: pd.DataFrame) -> pd.Series[bool]:
    """Return of which cells the scaling over their baseline may be stated, as `speed_is_known` tells it of one."""
    timed = _timed(cells)
    return cells["cell_id"].isin(timed) & cells["baseline_cell_id"].fillna(cells["cell_id"]).isin(timed)


def _timed(cells: pd.DataFrame) -> set[str]:
    """Return the ids of the cells with a valid timing."""
    return set(cells.loc[is_valid(cells["timing_valid"]), "cell_id"])


def has_speed(cells: pd.DataFrame) -> pd.Series[bool]:
    """Return which cells are ok and have a throughput from a valid timing."""
    return (cells["status"] == Status.OK.value) & (cells["samples_per_s"] > 0) & is_valid(cells["timing_valid"])


def without_result(cells: pd.DataFrame, trials: pd.DataFrame) -> pd.Series[bool]:
    """Return which cells may be the best for all that is known: those that failed, or that a budget left out."""
    is_skipped = trials["status"] == Status.SKIPPED.value
    # Early stopping and phases skip what cannot be the best.
    may_be_best = is_skipped & ~trials["skipped_by"].isin([EARLY_STOP, PHASES])
    left_out = (cells["status"] == Status.SKIPPED.value) & cells["cell_id"].isin(trials.loc[may_be_best, "cell_id"])
    return left_out | (cells["status"] == Status.FAILED.value)


@dataclass(frozen=True, kw_only=True)
class Eligible:
    """Which of a summary's cells may be chosen; one entry per cell."""

    kept: pd.Series[Any]
    repeats: pd.Series[Any]
    """Which are not kept because they are the same training as another one (see `_repeats` and `_copied`)."""
    untimed: pd.Series[Any]
    """Which are not kept only because their timing is not valid. A timing of too few workers says nothing at all."""
    left_out: Sequence[Remark]
    """A remark for each reason why cells are not kept, with their number."""
    without_metric: frozenset[str]
    """The `cell_id` of each ok cell that `has_metric` rules out."""
    may_be_best: pd.Series[Any]
    """Which are not kept although nothing rules them out: without a result, valid timing, or all of their work."""

    @staticmethod
    def of(cells: pd.DataFrame, trials: pd.DataFrame, measure: Measure, terms: Terms) -> Eligible:
        """Find the eligible cells; `trials` have their objective and score."""
        ok = cells["status"] == Status.OK.value
        skipped = cells["status"] == Status.SKIPPED.value
        # An infeasible cell may fit a larger cluster.
        is_unknown = without_result(cells, trials) | (cells["status"] == Status.INFEASIBLE.value)
        with_metric = has_metric(cells, trials, is_named=terms.report.names_metric)
        # A window without a figure is too short to give one.
        has_figure = cells["cell_id"].isin(trials.loc[trials["objective"] > 0, "cell_id"])
        has_figure = ok & (has_figure | is_invalid(cells["timing_valid"]))
        misses_target = ok & (cells["n_reached"] == 0) & (not measure.why)
        known = has_figure & with_metric
        timed = known & is_valid(cells["timing_valid"])
        # A cell that did less than its work is never chosen over one that did all of it.
        short = is_short(cells["work_done"])
        timed = timed & ~short if (known & ~short).any() else timed
        repeats = _repeats(cells, known, timed, terms.axes) | (known & _copied(cells, trials))
        groups = {
            "cells_not_ok": ~ok & ~skipped,
            "cells_skipped": skipped,
            "target_not_reached": misses_target & ~has_figure,
            "no_figure": ok & ~has_figure & ~misses_target,
            "no_metric": has_figure & ~with_metric,
            "cells_short": known & short & ~timed,
            "cells_not_timed": known & ~short & ~timed,
            "same_training": timed & repeats,
        }
        return Eligible(
            kept=timed & ~repeats,
            repeats=repeats,
            untimed=known & ~timed & ~short & ~repeats & (cells["timing_fault"] != Fault.TOO_FEW_WORKERS.value),
            left_out=[
                remark(code, count=int(rows.sum()), measure=measure.name, metric=terms.metric)
                for code, rows in groups.items()
                if rows.any()
            ],
            without_metric=frozenset(cells.loc[ok & ~with_metric, "cell_id"]),
            may_be_best=is_unknown | groups["no_figure"] | (known & ~timed & ~repeats),
        )


def _copied(cells: pd.DataFrame, trials: pd.DataFrame) -> pd.Series[bool]:
    """Return whether all ok trials of each cell are copies of another's: on one GPU, FSDP is the same as DDP."""
    ok = trials[trials["status"] == Status.OK.value]
    own = ok.loc[~ok["same_as"].isin(trials["trial_id"]), "cell_id"]
    return ~cells["cell_id"].isin(own)


def _repeats(
    cells: pd.DataFrame, known: pd.Series[Any], timed: pd.Series[Any], axes: Mapping[str, str]
) -> pd.Series[Any]:
    """Return whether each cell is the same training as another one, so that only chance could choose between the two.

    Rules in SAME_AT_REFERENCE and warm-ups change nothing at the reference batch (see `Comparison.references`). Of such
    cells, the first one is kept: one with a valid timing, and among those one with rule `none`.
    """
    batch = cells.set_index("cell_id")["global_batch_size"]
    at_reference = cells["global_batch_size"] == batch.reindex(cells["reference_cell_id"]).to_numpy()
    alike = [column for axis, column in axes.items() if axis not in ("lr_rule", "warmup_epochs")]
    same = known & at_reference & cells["lr_rule"].isin(SAME_AT_REFERENCE)
    ranked = cells.assign(untimed=~timed, scaled=cells["lr_rule"] != "none")[same]
    ranked = ranked.sort_values(["untimed", "scaled"], kind="stable")
    repeated = ranked.index[ranked.duplicated([*alike, "device", "lr_multiplier"])]
    return pd.Series(cells.index.isin(repeated), index=cells.index)
