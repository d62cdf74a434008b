"""The shortlist of a recommendation: cells worth reading about, with all their figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.analysis.trials import parsed_cell
from orchestrator.config.commands import command, narrowed_to
from orchestrator.decision.candidates import Contenders
from orchestrator.decision.explain import why_not
from orchestrator.decision.recommendation import Cell, Figure
from orchestrator.decision.same_batch import factors_of_speedup
from orchestrator.decision.thresholds import NOTICED
from orchestrator.statistics.intervals import Array, Interval
from orchestrator.text.cell_labels import axis as axis_name
from orchestrator.text.numbers import config_value, fact

_VALUES = ("gpus", "strategy", "global_batch_size", "device_batch_size", "lr_rule", "lr_multiplier", "lr")

_WITH_INTERVAL = {"samples_per_s": "1/s", "speedup": "1", "efficiency": "1", "accuracy": "1"}
"""Columns of the summary with an interval, and their units."""


def shortlist(contenders: Contenders, others: Collection[str | None] = ()) -> tuple[Cell, ...]:
    """Return the chosen cell, then by objective the front, the cells that may be best, `others`, and the baseline."""
    chosen, level = contenders.chosen, contenders.choice.log_objective.point
    is_on_front = on_front(contenders)
    is_named = contenders.cells["cell_id"].isin(list(others)).to_numpy()
    noticed = is_on_front | is_named | (contenders.choice.p_best >= NOTICED)
    noticed[[row for row in (chosen, contenders.baseline) if row is not None]] = True
    rows = sorted(np.flatnonzero(noticed).tolist(), key=lambda row: (row != chosen, np.isnan(level[row]), level[row]))
    intervals = _intervals(contenders)
    return tuple(_cell(contenders, row, intervals, on_front=bool(is_on_front[row])) for row in rows)


def _intervals(contenders: Contenders) -> Mapping[str, tuple[Interval, str]]:
    """Return the figures of all cells with their intervals and units, by the names that programs read."""
    intervals = {name: (total.intervals(), total.unit) for name, total in contenders.totals.items()}
    metric = contenders.metric.name
    for name, unit in (_WITH_INTERVAL | ({metric: "1"} if metric in contenders.cells else {})).items():
        point, lo, hi = (contenders.cells[f"{name}{end}"].to_numpy(dtype="float64") for end in ("", "_lo", "_hi"))
        intervals[name] = (Interval(point=point, lo=lo, hi=hi), unit)
    # The summary compares with fewer GPUs at the same batch; the recommendation with one baseline for all cells.
    intervals["gpu_speedup"] = intervals.pop("speedup")
    if contenders.baseline is not None:
        behind = contenders.choice.log_objective.minus(contenders.baseline).intervals()
        intervals["speedup"] = (behind.negated().map(np.exp), "1")
    worse = contenders.choice.score_difference.intervals()
    intervals[f"{metric}_difference"] = (worse if contenders.metric.higher_is_better else worse.negated(), "1")
    pooled = contenders.metric.sign * contenders.choice.pooled_difference
    intervals[f"{metric}_difference_pooled"] = (_without_ends(pooled), "1")
    for name, factor in zip(("speedup_of_gpus", "speedup_of_batch"), factors_of_speedup(contenders), strict=True):
        intervals[name] = (_without_ends(factor), "1")
    return intervals


def _without_ends(point: Array) -> Interval:
    unknown = np.full(len(point), np.nan)
    return Interval(point=point, lo=unknown, hi=unknown)


def axes_of(contenders: Contenders, row: int) -> dict[str, Any]:
    """Return the axes of a cell by the sweep's names, without axes that its trials did not have."""
    cell, terms = contenders.rows[row], contenders.terms
    had = {
        axis: cell[column] for axis, column in terms.axes.items() if axis in terms.nullable or pd.notna(cell[column])
    }
    return {axis: parsed_cell(_plain(value)) for axis, value in had.items()}


def _cell(contenders: Contenders, row: int, intervals: Mapping[str, tuple[Interval, str]], *, on_front: bool) -> Cell:
    cell, terms, axes = contenders.rows[row], contenders.terms, axes_of(contenders, row)
    chosen = contenders.chosen
    narrowed = narrowed_to(
        axes,
        sorted(contenders.seeds[row]),
        excludes=terms.excludes,
        zips=terms.zips,
        has_baseline=terms.has_baseline,
    )
    return Cell(
        cell_id=str(cell["cell_id"]),
        name=contenders.names[row],
        further={axis_name(column): fact(config_value(cell[column])) for column in contenders.further_axes},
        baseline_cell_id=_plain(cell["baseline_cell_id"]),
        axes=axes,
        values={column: _plain(cell[column]) for column in _VALUES},
        overrides=tuple(narrowed),
        command=command(terms.arguments, narrowed),
        figures={
            name: Figure(
                value=float(interval.point[row]), lo=float(interval.lo[row]), hi=float(interval.hi[row]), unit=unit
            )
            for name, (interval, unit) in intervals.items()
        },
        timing_valid=_plain(cell["timing_valid"]),
        n_timed=int(contenders.n_timed[row]),
        n_ok=int(cell["n_ok"]),
        note=str(cell["note"]),
        on_front=on_front,
        p_best=contenders.p_best(row),
        p_within_margin=float(contenders.choice.p_within[row]),
        eligible=bool(contenders.choice.keeps_accuracy[row]),
        tied=chosen is not None and bool(contenders.choice.ties_with(chosen)[row]),
        why_not=why_not(contenders, chosen, row),
    )


def _plain(value: Any) -> Any:
    """Return a plain Python value instead of a numpy or pandas value; None if missing."""
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def on_front(contenders: Contenders) -> npt.NDArray[np.bool_]:
    """Return which cells are candidates that no other one equals in all known figures and beats in one.

    The figures are time, metric and cost, means over the seeds.
    """
    times, costs = (contenders.totals[name].means() for name in (contenders.deciding_time, "cost"))
    figures = np.column_stack([-times, contenders.cells["score"].to_numpy(dtype="float64"), -costs])
    is_candidate = ~np.isnan(contenders.choice.log_objective.point)
    gains = figures[is_candidate, None, :] - figures[None, :, :]
    beats = (np.fmin.reduce(gains, axis=2) >= 0) & (np.fmax.reduce(gains, axis=2) > 0)
    return np.asarray(is_candidate & ~beats.any(axis=0))
