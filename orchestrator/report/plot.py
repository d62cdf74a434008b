"""The parts of the report's charts in Vega-Lite: encodings, marks and panels.

A chart's data are rows with constant field names; `tip` has a row's text, shown under the mouse pointer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator.report.vega import Spec
from orchestrator.text import figures
from orchestrator.text.figures import one_line
from orchestrator.text.rows import Row, axis

MOST_PANELS = 12
MOST_SERIES = 8
"""The most lines of a panel: as many as there are colours that can be told apart."""

MOST_BARS = 24

MOST_OPTIONS = 60
"""The most values of an axis in a menu."""

PANEL = {"width": 250, "height": 180}
"""The size of a panel in the static files; the page fits panels to its width."""

LABEL_CHARACTERS = 80
"""The most characters of a cell's label; longer ones are cut."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A chart with its title, and its own data if it does not draw the cells."""

    name: str
    """The stem of its files' names, and its anchor in the page."""
    title: str
    about: str = ""
    """One or two sentences on how to read the plot."""
    spec: Spec | None = None
    """The chart without its data; None if there is nothing to draw."""
    rows: Sequence[Mapping[str, Any]] | None = None
    """The chart's data, with the label of a row's cell as `cell`; None: the rows of the cells."""
    absent: str = ""
    """Why there is nothing to draw."""
    remarks: Sequence[str] = ()
    """Sentences on what is not drawn."""


def quantity(field: str, title: str, **scale: Any) -> dict[str, Any]:
    """Return an encoding of numbers with this title; `scale` as in Vega-Lite."""
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def category(field: str, title: str, **more: Any) -> dict[str, Any]:
    """Return an encoding of a value with few different values, in their order."""
    return {"field": field, "type": "ordinal", "title": title, **more}


def doubling(field: str, title: str, values: Sequence[float]) -> dict[str, Any]:
    """Return an encoding of GPUs or batches, which grow by doubling: logarithmic, with a tick at each value."""
    ticks = sorted({float(value) for value in values})
    every = math.ceil(len(ticks) / 7)
    scale = {"type": "log", "base": 2, "domain": [ticks[0] / 1.15, ticks[-1] * 1.15], "nice": False}
    return {**quantity(field, title, **scale), "axis": {"values": ticks[::every], "format": "~r", "grid": False}}


def spanning(field: str, title: str, values: pd.Series[Any]) -> dict[str, Any]:
    """Return an encoding of positive numbers: logarithmic if they span more than a factor of 10."""
    known = values.dropna()
    if len(known) and known.min() > 0 and known.max() / known.min() > 10:
        domain = [known.min() / 1.1, known.max() * 1.1]
        logarithmic = quantity(field, title, type="log", nice=False, domain=domain)
        return {**logarithmic, "axis": {"format": "~s", "tickCount": 5}}
    return {**quantity(field, title, zero=False, nice=True, padding=12), "axis": {"tickCount": 5, "format": "~r"}}


def clipped(lows: pd.Series[Any], points: pd.Series[Any], highs: pd.Series[Any]) -> list[float] | None:
    """Return a domain with all points and at most half their range more, however wide the intervals are."""
    known = points.dropna()
    if known.empty:
        return None
    low, high = float(known.min()), float(known.max())
    room = 0.5 * (high - low) or 0.05 * abs(high) or 0.05
    lowest, highest = lows.min(), highs.max()
    lo = max(low - room, min(low, lowest)) if lowest == lowest else low - 0.2 * room
    hi = min(high + room, max(high, highest)) if highest == highest else high + 0.2 * room
    edge = 0.05 * (hi - lo)
    return [lo - edge, hi + edge]


def mark(kind: str, encoding: Mapping[str, Any], *, where: str = "", **look: Any) -> dict[str, Any]:
    """Return a layer with one kind of mark, of the rows for which the expression `where` holds."""
    layer = {"mark": {"type": kind, "clip": True, **look}, "encoding": dict(encoding)}
    return {**layer, "transform": [{"filter": where}]} if where else layer


GREY = "#888a8a"
"""The colour of guides, visible on white and on black."""


def interval(axis: str, encoding: Mapping[str, Any], *, where: str, **look: Any) -> dict[str, Any]:
    """Return a layer with the intervals of a field, its ends being `<field>_lo` and `<field>_hi`."""
    field = encoding[axis]["field"]
    ends = {axis: {**encoding[axis], "field": f"{field}_lo"}, f"{axis}2": {"field": f"{field}_hi"}}
    return mark("rule", {**encoding, **ends}, where=f"{where} && isValid(datum.{field}_lo)", opacity=0.35, **look)


ZOOM = {
    "name": "zoom",
    "select": {"type": "interval", "zoom": "wheel![event.shiftKey]", "clear": "dblclick"},
    "bind": "scales",
}
"""Dragging moves the axes, the wheel with shift zooms, a double click resets; the wheel alone scrolls the page."""


def picked(field: str) -> dict[str, Any]:
    """Return a parameter with which a click on the legend keeps the marks of one value of the field visible."""
    return {"name": "pick", "select": {"type": "point", "fields": [field]}, "bind": "legend"}


FADED = {"opacity": {"condition": {"param": "pick", "value": 1}, "value": 0.12}}

PALE = {"fillOpacity": {"condition": {"test": "datum.timing === false", "value": 0.25}, "value": 1}}
"""Points without a valid timing are pale."""


def in_panels(layers: Sequence[Spec], transform: Sequence[Spec] = (), *, field: str, most: int = MOST_PANELS) -> Spec:
    """Return a chart with a panel for each value of the field, the recommended cell's panel first."""
    order = f"{field}_order"
    ranked = [
        {"window": [{"op": "dense_rank", "as": "panel_rank"}], "sort": [{"field": order}]},
        {"filter": f"datum.panel_rank <= {most}"},
    ]
    return {
        "transform": [*transform, *ranked],
        "facet": {"field": field, "sort": {"field": order, "op": "min"}, "title": None},
        "columns": 3,
        "spec": {**PANEL, "layer": list(layers)},
    }


def bars(label: str, value: str, title: str, *, colour: Mapping[str, Any] | None = None, percent: bool = False) -> Spec:
    """Return a chart with one horizontal bar for each label, in the order of the rows' `order`."""
    encoding = {
        "y": {
            "field": label,
            "type": "nominal",
            "title": None,
            "sort": {"field": "order", "op": "min"},
            "axis": {"labelLimit": 260},
        },
        "x": {**quantity(value, title), "axis": {"format": ".0%" if percent else "~r", "tickCount": 5}},
        "tooltip": {"field": "tip"},
    }
    layers = [mark("bar", {**encoding, **({"color": colour} if colour else {})}, height={"band": 0.7})]
    if not colour:
        text = {**encoding, "text": {"field": value, "format": ".3~r"}}
        layers.append(mark("text", text, align="left", dx=4, clip=False))
    return {"width": 560, "height": {"step": 20}, "layer": layers}


WORDS: Mapping[str, str] = {
    "gpus": "GPUs",
    "device_batch_size": "batch per GPU",
    "global_batch_size": "global batch",
    "lr_rule": "LR rule",
    "lr_multiplier": "LR multiplier",
}
"""Titles of columns."""


def is_on_cpu(cells: pd.DataFrame) -> bool:
    """Return whether `gpus` counts processes, because no cell has a GPU."""
    return "device" in cells and set(cells["device"].dropna()) == {"cpu"}


def word(column: str, cells: pd.DataFrame) -> str:
    """Return a column's title: `batch per GPU`; without GPUs, `batch per process`."""
    found = WORDS.get(column, axis(column))
    return found.replace("GPUs", "processes").replace("GPU", "process") if is_on_cpu(cells) else found


def filter_value(value: Any) -> str:
    """Return an axis's value as it stands in a menu."""
    return label_of(figures.fact(figures.asked(value)))


def ranked_panels(rows: Sequence[Row], titles: Sequence[str], columns: Sequence[str], first: Row | None) -> list[int]:
    """Return the place of each row's panel: the panel of `first`, then those alike in the most columns."""

    def unlike(row: Row) -> int:
        return 0 if first is None else sum(figures.asked(row[name]) != figures.asked(first[name]) for name in columns)

    distance: dict[str, int] = {}
    for row, title in zip(rows, titles, strict=True):
        distance.setdefault(title, unlike(row))
    places = {title: place for place, title in enumerate(sorted(distance, key=lambda title: distance[title]))}
    return [places[title] for title in titles]


def label_of(text: str) -> str:
    """Return a cell's label or a panel's title on one line, not too long for a chart."""
    return one_line(text, LABEL_CHARACTERS)
