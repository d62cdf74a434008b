"""From the cells of a sweep to the lines of a picture: which column is which direction, and what makes a panel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from orchestrator.collection.timed import is_invalid
from orchestrator.report.picture import MOST_PANELS, MOST_SERIES, Axis, Panel, Picture, Points, Series
from orchestrator.text import figures
from orchestrator.text.figures import one_line
from orchestrator.text.rows import Row, axis, in_order
from sweeps.number import is_number

WORDS: Mapping[str, str] = {
    "gpus": "GPUs",
    "device_batch_size": "batch per GPU",
    "global_batch_size": "global batch",
    "lr_rule": "LR rule",
    "lr_multiplier": "LR multiplier",
}
"""Columns in a reader's words."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """How cells become lines. All are columns of the cells."""

    x: str
    y: str
    colour: str
    """What the legend names."""
    among: Sequence[Any] = ()
    """All its values in the sweep, where not all of them have lines: each looks as it does in the other pictures."""
    facets: Sequence[str]
    """What makes a panel of its own."""
    tooltip: Callable[[Row], str]
    """What a reader is shown who points at a cell."""
    guides: Callable[[pd.DataFrame], Sequence[tuple[Points, Points]]] = lambda cells: ()
    marks_invalid: bool = False
    """Whether a cell without a valid timing is drawn hollow."""
    tells: Callable[[pd.DataFrame], bool] = lambda cells: True
    """Whether a panel of these cells says anything."""


def with_lines(picture: Picture, cells: pd.DataFrame, lines: Lines) -> Picture:
    """The picture with its panels; cells without a y are left out, and what is not drawn is told."""
    drawn = cells[cells[lines.y].notna()]
    if drawn.empty:
        return picture
    every_cell = in_order(cells, [*lines.facets, lines.colour, lines.x])
    ordered = every_cell[every_cell[lines.y].notna()]
    every = grouped(ordered, lines.facets)
    telling = [(title, group) for title, group in every if lines.tells(group)]
    values = [
        value for value in ordered[lines.colour].unique() if any((g[lines.colour] == value).any() for _, g in telling)
    ]
    kept, remarks = fewer(values, word(lines.colour, cells))
    shown = ((title, group[group[lines.colour].isin(kept)]) for title, group in telling)
    groups = [(title, group) for title, group in shown if len(group)]
    if lines.marks_invalid:  # those that tell nothing for certain are the first to go where panels are too many
        groups.sort(key=lambda titled: bool(is_invalid(titled[1]["timing_valid"]).all()))
    if silent := len(every) - len(telling):
        many = f"{silent} groups of cells have" if silent > 1 else "One group of cells has"
        remarks = [*remarks, f"{many} only the baseline, and therefore no panel."]
    if len(groups) > MOST_PANELS:
        remarks = [*remarks, f"{MOST_PANELS} of {len(groups)} panels are drawn; the CSV file has all of them."]
    groups = groups[:MOST_PANELS]
    kept = [value for value in kept if any((group[lines.colour] == value).any() for _, group in groups)]
    legend = tuple(named(lines.colour, value, cells) for value in kept)
    places = _places(kept, lines.among)
    looks = {value: (place, label) for value, place, label in zip(kept, places, legend, strict=True)}
    panels = [_panel(title, group, looks, lines) for title, group in groups]
    columns = [*lines.facets, lines.colour, lines.x, lines.y]
    columns += [name for name in (f"{lines.y}_lo", f"{lines.y}_hi", "n_ok", "timing_valid", "cell_id") if name in cells]
    return replace(
        picture,
        legend=legend,
        places=places,
        panels=panels,
        remarks=[*picture.remarks, *remarks, *_cut_off(picture.y, drawn, lines.y)],
        data=ordered[list(dict.fromkeys(columns))].to_dict("records"),  # type: ignore[arg-type]
    )


def _cut_off(shown: Axis, drawn: pd.DataFrame, y: str) -> list[str]:
    """A remark where intervals go on beyond the picture: an axis that held them all would show nothing else."""
    if f"{y}_lo" not in drawn:
        return []
    beyond = int(((drawn[f"{y}_lo"] < shown.lo) | (drawn[f"{y}_hi"] > shown.hi)).sum())
    many = figures.counted(beyond, "interval extends", "intervals extend")
    return [f"{many} beyond the picture; the CSV file has the values."] if many else []


def fewer(values: Sequence[Any], what: str) -> tuple[list[Any], list[str]]:
    """As many of the values as can be told apart, the ends among them; and a remark if these are not all."""
    if len(values) <= MOST_SERIES:
        return list(values), []
    step = (len(values) - 1) / (MOST_SERIES - 1)
    kept = [values[round(index * step)] for index in range(MOST_SERIES)]
    return kept, [f"{MOST_SERIES} of {len(values)} values of {what} are drawn; the CSV file has all of them."]


def grouped(cells: pd.DataFrame, facets: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """The cells of each panel with its title, in the order of the cells."""
    if not facets:
        return [("", cells)]
    single = {name for name in facets if cells[name].nunique(dropna=False) == 1}
    groups = cells.groupby(list(facets), sort=False, dropna=False)
    found = []
    for _, group in groups:
        first = group.iloc[0]
        found.append((", ".join(named(name, first[name], cells) for name in facets if name not in single), group))
    return found


def word(column: str, cells: pd.DataFrame) -> str:
    """A column in a reader's words: without GPUs, `gpus` counts worker processes."""
    on_cpu = "device" in cells and set(cells["device"].dropna()) == {"cpu"}
    found = WORDS.get(column, axis(column))
    return found.replace("GPUs", "processes").replace("GPU", "process") if on_cpu else found


def named(column: str, value: Any, cells: pd.DataFrame) -> str:
    """A column and its value: `LR rule: linear`."""
    return one_line(f"{word(column, cells)}: {_value(value)}")


def _value(value: Any) -> str:
    """A value of an axis: `1,024`, `0.5`, `none`, `null`."""
    value = figures.asked(value)
    if is_number(value):
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"
    return str(value)


def number(value: Any) -> float:
    """A table's value as a point's: NaN where there is none."""
    return float(value) if value is not None and not pd.isna(value) else math.nan


def _places(kept: Sequence[Any], among: Sequence[Any]) -> tuple[int, ...]:
    """In the palette; by the order in the legend where there are more values than looks."""
    known = list(among) if len(among) <= MOST_SERIES and set(kept) <= set(among) else list(kept)
    return tuple(known.index(value) for value in kept)


def _panel(title: str, group: pd.DataFrame, looks: Mapping[Any, tuple[int, str]], lines: Lines) -> Panel:
    series = []
    for value, (place, label) in looks.items():
        rows = group[group[lines.colour] == value].sort_values(lines.x, kind="stable").to_dict("records")
        if rows:
            series.append(_series(label, place, rows, lines))
    return Panel(title=title, series=series, guides=lines.guides(group))


def _series(label: str, place: int, rows: Sequence[Row], lines: Lines) -> Series:
    def points(column: str) -> Points:
        return tuple(number(row.get(column)) for row in rows)

    lo, hi = points(f"{lines.y}_lo"), points(f"{lines.y}_hi")
    banded = not all(map(math.isnan, lo))
    return Series(
        label=label,
        place=place,
        x=points(lines.x),
        y=points(lines.y),
        lo=lo if banded else (),
        hi=hi if banded else (),
        tooltips=tuple(one_line(lines.tooltip(row), most=300) for row in rows),
        doubtful=tuple(lines.marks_invalid and not row["timing_valid"] for row in rows),
    )
