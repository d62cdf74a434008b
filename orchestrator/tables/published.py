"""The table that puts what others published beside what was measured, in their columns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator.config.published import Column, Figure, Published
from orchestrator.config.published import Row as PublishedRow
from orchestrator.text import figures
from orchestrator.text.rows import Row, axis, head, status, varying
from orchestrator.text.table import TextTable
from sweeps.status import Status

NO_COUNTERPART = "has no counterpart here"
NOT_MEASURED = "not measured"

_OF_BASELINE = ("speedup", "efficiency")
"""1 of a baseline, whatever was measured."""


def published_markdown(published: Published, cells: pd.DataFrame) -> str:
    """`published_table` with its heading."""
    return "\n".join([*head(cells, "Published and measured"), *published_table(published, cells).markdown()])


def published_table(published: Published, cells: pd.DataFrame) -> TextTable:
    """A line for each published row and measured cell, with the published figures in the first line of each row.

    Brackets hold a 95% interval where the summary has one.
    """
    lines = [line for row in published.rows for line in _lines(row, published.columns, cells)]
    table = pd.DataFrame(lines).fillna("")
    about = [
        f"Published: {figures.plain(published.source)}.",
        "Each figure as published, then as measured here."
        " † This timing is not valid; the note in summary.csv says why.",
    ]
    return TextTable(name="published", title="Published and measured", about=about, frame=table)


def _lines(row: PublishedRow, columns: Mapping[str, Column], cells: pd.DataFrame) -> list[dict[str, str]]:
    published = {f"{column.title}: published": _text(row.figures.get(name)) for name, column in columns.items()}
    first = {"published": row.label, **published, "ended": "" if row.status == Status.OK.value else row.status}
    if row.cell is None:
        return [_in_order(first, {}, NO_COUNTERPART, columns)]
    found = cells[_matches(cells, row.cell)]
    if found.empty:
        return [_in_order(first, {}, NOT_MEASURED, columns)]
    differing = [*varying(found), *(["lr_rule"] if found["lr_rule"].nunique() > 1 else [])]
    lines: list[dict[str, str]] = []
    for cell in found.to_dict("records"):
        measured = {f"{column.title}: measured": _measured(cell, column) for column in columns.values()}
        lines.append(_in_order(first if not lines else {}, measured, _name(cell, differing), columns))
    return lines


def _in_order(
    published: Mapping[str, str], measured: Mapping[str, str], where: str, columns: Mapping[str, Column]
) -> dict[str, str]:
    pairs = [
        (f"{column.title}: {side}", source)
        for column in columns.values()
        for side, source in (("published", published), ("measured", measured))
    ]
    figures_shown = {title: source.get(title, "") for title, source in pairs}
    label = {"published": published.get("published", ""), "ended": published.get("ended", ""), "measured at": where}
    return {**label, **figures_shown}


def _matches(cells: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.Series[bool]:
    """Which cells have these values on these axes; where there is no such axis all have null, and none another."""
    matching = pd.Series(True, index=cells.index)
    for name, value in wanted.items():
        column = f"axes.{name}" if f"axes.{name}" in cells else name
        sought = json.dumps(value) if isinstance(value, (list, Mapping)) else value
        if column not in cells:
            matching &= value is None
        else:
            matching &= cells[column].isna() if value is None else cells[column] == sought
    return matching


def _name(cell: Row, differing: Sequence[str]) -> str:
    """What tells the cell from the row's others, its status where that is not ok, and how many seeds there are."""
    parts = [f"{axis(column)}={figures.asked(cell[column])}" for column in differing]
    seeds = f"{cell['n_ok']} seed{'s' if cell['n_ok'] != 1 else ''}"
    return ", ".join([*parts, status(cell) if cell["status"] != Status.OK.value else seeds])


def _measured(cell: Row, column: Column) -> str:
    if column.column in _OF_BASELINE and cell["cell_id"] == cell["baseline_cell_id"]:
        return "1 (baseline)"
    factor = column.factor * (cell[column.times] if column.times else 1)
    ends = [cell.get(f"{column.column}{end}", math.nan) for end in ("", "_lo", "_hi")]
    point, lo, hi = (factor * float("nan" if value is None or pd.isna(value) else value) for value in ends)
    text = figures.with_interval(point, lo, hi, figures.number)
    epochs = cell.get("epochs", math.nan)
    if text and column.epochs and not epochs >= column.epochs:
        if epochs < 1:
            return ""  # a few steps of an epoch say nothing of them all
        text += f" after {epochs:.4g} of {column.epochs} epochs"
    return f"{text} †" if text and cell["timing_valid"] is False and column.column != "accuracy" else text


def _text(figure: Figure | None) -> str:
    if figure is None:
        return ""
    if isinstance(figure, tuple):
        return "–".join(figures.number(end) for end in figure)
    return figures.number(figure)
