"""Plots as plain values, before anything is drawn: panels, lines, bars and axes, and how cells become lines.

`orchestrator.report.matplotlib` draws these values; tests and the CSV files use them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from orchestrator.analysis.validity import is_invalid
from orchestrator.text import figures
from orchestrator.text.figures import one_line
from orchestrator.text.rows import Row, axis, in_order
from sweeps.axes import is_number

MOST_PANELS = 12
MOST_SERIES = 8
"""The most lines of a panel: as many as there are colours and markers that can be told apart."""

MOST_BARS = 24
BAR_LABEL = 108
"""The most characters of a bar's label: as many as half of the plot holds on two lines."""

Points = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line with its points; NaN is a missing point. All tuples are as long as `x`, or empty."""

    label: str
    place: int
    """Place in the palette: it determines colour, marker and dashes, so a label looks the same in every panel."""
    x: Points
    y: Points
    lo: Points = ()
    hi: Points = ()
    """The ends of the band behind the line."""
    tooltips: tuple[str, ...] = ()
    """Text for each point, shown under the mouse pointer."""
    doubtful: tuple[bool, ...] = ()
    """True for points that are drawn hollow."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One direction of a panel."""

    label: str
    scale: str = "linear"
    """`linear`, `log2` or `log10`."""
    ticks: Points = ()
    """Empty: chosen by the plotting library."""
    percent: bool = False
    lo: float = math.nan
    hi: float = math.nan
    """The ends of the axis; NaN: the end of the data."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One coordinate system; the panels of a plot have the same axes."""

    title: str = ""
    series: Sequence[Series]
    guides: Sequence[tuple[Points, Points]] = ()
    """Thin dashed reference lines, as (x, y)."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One horizontal bar, divided into the parts that the legend names, from left to right."""

    label: str
    parts: Points


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Panels with one legend, and the data behind them."""

    name: str
    """The stem of its files' names, and its anchor in the page."""
    title: str
    about: str
    """One or two sentences on how to read the plot."""
    x: Axis = Axis(label="")
    y: Axis = Axis(label="")
    legend: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    """The place in the palette of each entry of the legend; empty: in the order of the legend."""
    panels: Sequence[Panel] = ()
    bars: Sequence[Bar] = ()
    """Instead of panels."""
    data: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Rows of the CSV file."""
    absent: str = ""
    """Why there is nothing to draw."""
    remarks: Sequence[str] = ()
    """Sentences on what is not drawn or is cut off."""

    @property
    def looks(self) -> tuple[int, ...]:
        """The place in the palette of each entry of the legend."""
        return self.places or tuple(range(len(self.legend)))

    @property
    def is_drawn(self) -> bool:
        """True if the plot has panels or bars."""
        return bool(self.panels or self.bars)


_MOST_TICKS = 6


def power_axis(label: str, values: Sequence[float]) -> Axis:
    """Return a logarithmic axis with ticks at (some of) these values: GPUs and batches grow by doubling."""
    ticks = sorted(set(map(float, values)))
    if len(ticks) == 1:
        return Axis(label=label, scale="log2", ticks=tuple(ticks), lo=ticks[0] / 1.5, hi=ticks[0] * 1.5)
    every = math.ceil(len(ticks) / _MOST_TICKS)
    margin = (ticks[-1] / ticks[0]) ** 0.06
    return Axis(label=label, scale="log2", ticks=tuple(ticks[::every]), lo=ticks[0] / margin, hi=ticks[-1] * margin)


def decade_axis(label: str, least: float, most: float) -> Axis:
    """Return a logarithmic axis for a span of a factor of ten or more, with ticks at 1, 2 and 5, or at decades."""
    lo, hi = least / (most / least) ** 0.05, most * (most / least) ** 0.05
    decades = range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)
    steps = (1, 2, 5) if hi / lo < 300 else (1,)
    every = math.ceil(len(decades) / _MOST_TICKS)
    ticks = [step * 10.0**power for power in decades[::every] for step in steps]
    return Axis(label=label, scale="log10", ticks=tuple(tick for tick in ticks if lo <= tick <= hi), lo=lo, hi=hi)


def speedup_axis(cells: pd.DataFrame) -> Axis:
    """Return an axis for the speed-up, logarithmic if GPUs span a factor of 8: small counts keep their distance."""
    known = cells[cells["speedup"].notna()]
    gpus, speed = known["gpus"], known["speedup"]
    ideal = float((speed / known["efficiency"]).max())  # the baseline may have more GPUs than the fewest
    top = 1.15 * max(ideal, float(speed.max()))
    if gpus.max() / gpus.min() < 8:
        return Axis(label="speed-up", lo=0, hi=top)
    least = min(1.0, float(speed[speed > 0].min()))
    ticks = tuple(2.0**power for power in range(math.floor(math.log2(least)), math.ceil(math.log2(top)) + 1))
    return Axis(label="speed-up", scale="log2", ticks=ticks, lo=least / 1.15, hi=top)


def seconds_axis(cells: pd.DataFrame) -> Axis:
    """Return an axis for `time_to_target_s`, logarithmic if it spans more than a factor of 10."""
    seconds = cells["time_to_target_s"].dropna()
    if seconds.max() / seconds.min() > 10:
        return decade_axis("time to target [s]", float(seconds.min()), float(seconds.max()))
    return Axis(label="time to target [s]", lo=0, hi=1.1 * float(seconds.max()))


def clipped_axis(cells: pd.DataFrame, column: str) -> Axis:
    """Return an axis that holds all points and at most half their range more, however wide the intervals are."""
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
    """Return an axis with a tick at every epoch if there are few, so that there is no tick at half an epoch."""
    known = sorted(set(map(float, epochs)))
    if len(known) > _MOST_TICKS or not all(each.is_integer() for each in known):
        return Axis(label="epoch")
    room = 0.05 * (known[-1] - known[0]) or 0.5
    return Axis(label="epoch", ticks=tuple(known), lo=known[0] - room, hi=known[-1] + room)


def loss_axis(points: pd.DataFrame) -> Axis:
    """Return an axis for losses, logarithmic if they are positive and span more than a factor of 5."""
    low, high = points["loss"].min(), points["loss"].max()
    if low > 0 and high / low > 5:
        return decade_axis("training loss", float(low), float(high))
    return Axis(label="training loss", hi=float(high) + 0.05 * float(high - low), lo=min(0.0, float(low)))


WORDS: Mapping[str, str] = {
    "gpus": "GPUs",
    "device_batch_size": "batch per GPU",
    "global_batch_size": "global batch",
    "lr_rule": "LR rule",
    "lr_multiplier": "LR multiplier",
}
"""Titles of columns."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """How cells become lines; `x`, `y`, `colour` and `facets` are columns of the cells."""

    x: str
    y: str
    colour: str
    """The column whose values the legend names."""
    among: Sequence[Any] = ()
    """All values of `colour` in the sweep, if not all have lines: a value then looks the same in all plots."""
    facets: Sequence[str]
    """The columns whose values make separate panels."""
    tooltip: Callable[[Row], str]
    """Return a cell's text, shown under the mouse pointer."""
    guides: Callable[[pd.DataFrame], Sequence[tuple[Points, Points]]] = lambda cells: ()
    marks_invalid: bool = False
    """True if cells without a valid timing are drawn hollow."""
    informs: Callable[[pd.DataFrame], bool] = lambda cells: True
    """Return whether a panel with these cells says anything."""


def with_lines(plot: Plot, cells: pd.DataFrame, lines: Lines) -> Plot:
    """Return the plot with a panel for each group of cells; cells without a `y` are left out.

    Remarks name panels and lines that are left out because there are too many.
    """
    drawn = cells[cells[lines.y].notna()]
    if drawn.empty:
        return plot
    every_cell = in_order(cells, [*lines.facets, lines.colour, lines.x])
    ordered = every_cell[every_cell[lines.y].notna()]
    every = grouped(ordered, lines.facets)
    telling = [(title, group) for title, group in every if lines.informs(group)]
    values = [
        value for value in ordered[lines.colour].unique() if any((g[lines.colour] == value).any() for _, g in telling)
    ]
    kept, remarks = fewer(values, word(lines.colour, cells))
    shown = ((title, group[group[lines.colour].isin(kept)]) for title, group in telling)
    groups = [(title, group) for title, group in shown if len(group)]
    if lines.marks_invalid:  # if there are too many panels, those without a valid timing go first
        groups.sort(key=lambda titled: bool(is_invalid(titled[1]["timing_valid"]).all()))
    if silent := len(every) - len(telling):
        many = f"{silent} groups of cells have" if silent > 1 else "One group of cells has"
        remarks = [*remarks, f"{many} only the baseline, and therefore no panel."]
    if len(groups) > MOST_PANELS:
        remarks = [*remarks, f"{MOST_PANELS} of {len(groups)} panels are drawn; the CSV file has all of them."]
    groups = groups[:MOST_PANELS]
    kept = [value for value in kept if any((group[lines.colour] == value).any() for _, group in groups)]
    legend = tuple(named(lines.colour, value, cells) for value in kept)
    known = list(lines.among) if len(lines.among) <= MOST_SERIES and set(kept) <= set(lines.among) else kept
    places = tuple(known.index(value) for value in kept)
    panels = []
    for title, group in groups:
        rows = [group[group[lines.colour] == value].sort_values(lines.x, kind="stable") for value in kept]
        looks = zip(legend, places, rows, strict=True)
        series = [_series(label, place, own.to_dict("records"), lines) for label, place, own in looks if len(own)]
        panels.append(Panel(title=title, series=series, guides=lines.guides(group)))
    columns = [*lines.facets, lines.colour, lines.x, lines.y]
    columns += [name for name in (f"{lines.y}_lo", f"{lines.y}_hi", "n_ok", "timing_valid", "cell_id") if name in cells]
    return replace(
        plot,
        legend=legend,
        places=places,
        panels=panels,
        remarks=[*plot.remarks, *remarks, *_beyond_axis(plot.y, drawn, lines.y)],
        data=ordered[list(dict.fromkeys(columns))].to_dict("records"),  # type: ignore[arg-type]
    )


def _beyond_axis(shown: Axis, drawn: pd.DataFrame, y: str) -> list[str]:
    """Return a remark if intervals end beyond the axis: an axis that held them all would show nothing else."""
    if f"{y}_lo" not in drawn:
        return []
    beyond = int(((drawn[f"{y}_lo"] < shown.lo) | (drawn[f"{y}_hi"] > shown.hi)).sum())
    many = figures.counted(beyond, "interval extends", "intervals extend")
    return [f"{many} beyond the axis; the CSV file has the values."] if many else []


def fewer(values: Sequence[Any], what: str) -> tuple[list[Any], list[str]]:
    """Return up to MOST_SERIES of the values, with both ends, and a remark if some are left out."""
    if len(values) <= MOST_SERIES:
        return list(values), []
    step = (len(values) - 1) / (MOST_SERIES - 1)
    kept = [values[round(index * step)] for index in range(MOST_SERIES)]
    return kept, [f"{MOST_SERIES} of {len(values)} values of {what} are drawn; the CSV file has all of them."]


def grouped(cells: pd.DataFrame, facets: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Return the title and the cells of each panel, in the order of the cells."""
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
    """Return a column's title: `batch per GPU`; without GPUs, `batch per process`."""
    on_cpu = "device" in cells and set(cells["device"].dropna()) == {"cpu"}
    found = WORDS.get(column, axis(column))
    return found.replace("GPUs", "processes").replace("GPU", "process") if on_cpu else found


def named(column: str, value: Any, cells: pd.DataFrame) -> str:
    """Return a column's title and value: `LR rule: linear`, `global batch: 1,024`."""
    value = figures.asked(value)
    if is_number(value):
        value = f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"
    return one_line(f"{word(column, cells)}: {value}")


def number(value: Any) -> float:
    """Return a table's value as a float: NaN for a missing one."""
    return float(value) if value is not None and not pd.isna(value) else math.nan


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
