"""The cells that a recommendation discusses: the chosen one, its baseline, and those that users may prefer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.collection.collector import parsed_cell
from orchestrator.config.terms import Terms
from orchestrator.decision.command import command, narrowed_to
from orchestrator.decision.contenders import Contenders
from orchestrator.decision.reasons import why_not
from orchestrator.decision.recommendation import NOTICED, Figure, Setting, TradeOff
from orchestrator.statistics.means import Interval

_VALUES = ("gpus", "strategy", "global_batch_size", "device_batch_size", "lr_rule", "lr_multiplier", "lr")

_OF_SUMMARY = {"samples_per_s": "1/s", "speedup": "1", "efficiency": "1", "accuracy": "1", "val_accuracy": "1"}
"""Columns of the summary with an interval, and their units."""


def shortlist(found: Contenders, front: Sequence[TradeOff], terms: Terms) -> tuple[Setting, ...]:
    """The chosen cell first, then by the objective: the front, the cells that may yet be best, the baseline."""
    chosen, level = found.chosen, found.choice.log_objective.point
    on_front = np.asarray(found.cells["cell_id"].isin([point.cell_id for point in front]))
    noticed = on_front | (found.choice.p_best >= NOTICED)
    noticed[[row for row in (chosen, found.contest.baseline) if row is not None]] = True
    rows = sorted(np.flatnonzero(noticed).tolist(), key=lambda row: (row != chosen, np.isnan(level[row]), level[row]))
    figures = _figures(found)
    return tuple(_setting(found, row, terms, figures, on_front=bool(on_front[row])) for row in rows)


def axes_of(found: Contenders, row: int, terms: Terms) -> dict[str, Any]:
    """The axes of a cell by the sweep's names, without those that its trials did not have."""
    cell = found.cells.loc[row]
    had = {
        axis: cell[column] for axis, column in terms.axes.items() if axis in terms.nullable or pd.notna(cell[column])
    }
    return {axis: parsed_cell(_plain(value)) for axis, value in had.items()}


def _setting(
    found: Contenders, row: int, terms: Terms, figures: Mapping[str, tuple[Interval, str]], *, on_front: bool
) -> Setting:
    cell, axes = found.cells.loc[row], axes_of(found, row, terms)
    narrowed = narrowed_to([axes], sorted(found.seeds[row]), excludes=terms.excludes, zips=terms.zips)
    return Setting(
        cell_id=str(cell["cell_id"]),
        name=found.names[row],
        baseline_cell_id=_plain(cell["baseline_cell_id"]),
        axes=axes,
        values={column: _plain(cell[column]) for column in _VALUES},
        overrides=tuple(narrowed),
        command=command(terms.arguments, narrowed),
        figures={name: _at(figure, row) for name, figure in figures.items()},
        timing_valid=_plain(cell["timing_valid"]),
        note=str(cell["note"]),
        on_front=on_front,
        p_best=found.p_best(row),
        p_within_margin=float(found.choice.p_within[row]),
        why_not=why_not(found, found.chosen, row),
    )


def _figures(found: Contenders) -> dict[str, tuple[Interval, str]]:
    """Figures of every cell with their units, by name."""
    totals = {name: (total.intervals(), total.unit) for name, total in found.totals.items()}
    of_summary = {name: (_of_summary(found.cells, name), unit) for name, unit in _OF_SUMMARY.items()}
    return totals | of_summary | {"val_accuracy_difference": (found.choice.accuracy_difference.intervals(), "1")}


def _of_summary(cells: pd.DataFrame, column: str) -> Interval:
    point, lo, hi = (cells[name].to_numpy(dtype="float64") for name in (column, f"{column}_lo", f"{column}_hi"))
    return Interval(point=point, lo=lo, hi=hi)


def _at(figure: tuple[Interval, str], row: int) -> Figure:
    interval, unit = figure
    value, lo, hi = (float(each[row]) for each in (interval.point, interval.lo, interval.hi))
    return Figure(value=value, lo=lo, hi=hi, unit=unit)


def _plain(value: Any) -> Any:
    """A plain Python value, without numpy and pandas; None if missing."""
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
