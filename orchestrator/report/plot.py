"""The report's charts in Vega-Lite: encodings, marks and panels, the page's script and colours, and static files.

A chart's data are rows with constant field names; `tip` has a row's text, shown under the mouse pointer.

This is the only module with vl_convert, which contains Vega, so the page needs no network and no other file. The page
evaluates Vega's expressions with an interpreter instead of compiled functions, because its content security policy
forbids the latter. Colours differ in lightness as well as hue, so that colour-blind readers can tell them apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.text import numbers
from orchestrator.text.cell_labels import WORDS, Row, axis, in_order
from orchestrator.text.numbers import one_line

Spec = Mapping[str, Any]
"""A chart in Vega-Lite. Names of fields and expressions are constants of this package; texts are in the data."""

MOST_PANELS = 12
MOST_SERIES = 8
"""The most lines of a panel: as many as there are colours that can be told apart."""

MOST_BARS = 24

MOST_OPTIONS = 60
"""The most values of an axis in a menu."""

PANEL = {"width": 250, "height": 180}
"""The size of a panel in the static files; the page fits panels to its width."""

LABEL_CHARACTERS = 200
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
    rows: Sequence[Row] | None = None
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
    # More than seven labels would overlap in a panel.
    every = math.ceil(len(ticks) / 7)
    scale = {"type": "log", "base": 2, "domain": [ticks[0] / 1.15, ticks[-1] * 1.15], "nice": False}
    return {**quantity(field, title, **scale), "axis": {"values": ticks[::every], "format": "~r", "grid": False}}


def spanning(field: str, title: str, values: pd.Series[Any]) -> dict[str, Any]:
    """Return an encoding of positive numbers: logarithmic if they span more than a factor of 10."""
    known = values.dropna()
    if len(known) and known.min() > 0 and known.max() / known.min() > 10:
        domain = [known.min() / 1.1, known.max() * 1.1]
        logarithmic = quantity(field, title, type="log", nice=False, domain=domain)
        # SI prefixes are for large numbers: a loss is 0.1, not 100m.
        return {**logarithmic, "axis": {"format": "~s" if known.min() >= 1 else "~g", "tickCount": 5}}
    return {**quantity(field, title, zero=False, nice=True, padding=12), "axis": {"tickCount": 5, "format": "~r"}}


def clipped(
    lows: pd.Series[Any], points: pd.Series[Any], highs: pd.Series[Any], least: float = 0.0
) -> list[float] | None:
    """Return a domain with all points and at most half their range more, however wide the intervals are.

    It is at least `least` wide: points that differ by less look alike.
    """
    known = points.dropna()
    if known.empty:
        return None
    low, high = float(known.min()), float(known.max())
    # Points that agree exactly still get a visible range.
    room = 0.5 * (high - low) or 0.05 * abs(high) or 0.05
    lowest, highest = lows.min(), highs.max()
    lo = max(low - room, min(low, lowest)) if lowest == lowest else low - 0.2 * room
    hi = min(high + room, max(high, highest)) if highest == highest else high + 0.2 * room
    edge = max(0.05 * (hi - lo), 0.5 * (least - (hi - lo)))
    return [lo - edge, hi + edge]


def mark(kind: str, encoding: Mapping[str, Any], *, where: str = "", **look: Any) -> dict[str, Any]:
    """Return a layer with one kind of mark, of the rows for which the expression `where` holds."""
    layer = {"mark": {"type": kind, "clip": True, **look}, "encoding": dict(encoding)}
    return {**layer, "transform": [{"filter": where}]} if where else layer


ABOUT_INTERVALS = "Bands, and lines across marks: 95% intervals over the seeds."

GREY = "#888a8a"
"""The colour of guides, visible on white and on black."""


def interval(axis: str, encoding: Mapping[str, Any], *, where: str, **look: Any) -> list[dict[str, Any]]:
    """Return layers with the intervals of a field, its ends being `<field>_lo` and `<field>_hi`.

    An interval that goes beyond the axis has an arrow at its end.
    """
    field, scale = encoding[axis]["field"], encoding[axis]["scale"]
    ends = {axis: {**encoding[axis], "field": f"{field}_lo"}, f"{axis}2": {"field": f"{field}_hi"}}
    rule = mark("rule", {**encoding, **ends}, where=f"{where} && isValid(datum.{field}_lo)", opacity=0.35, **look)
    if not scale.get("domain"):
        return [rule]
    least, most = scale["domain"]
    beyond = [
        (least, f"datum.{field}_lo < {least:.6g}", {"x": "triangle-left", "y": "triangle-down"}[axis]),
        (most, f"datum.{field}_hi > {most:.6g}", {"x": "triangle-right", "y": "triangle-up"}[axis]),
    ]
    place = {channel: code for channel, code in encoding.items() if channel != "shape"}
    return [rule] + [
        mark(
            "point",
            {**place, axis: {"datum": end, "type": "quantitative", "scale": scale}},
            where=f"{where} && isValid(datum.{field}_lo) && {is_beyond}",
            shape=shape,
            size=35,
            filled=True,
            opacity=0.6,
            clip=False,
        )
        for end, is_beyond, shape in beyond
    ]


def band(encoding: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return a layer with the area between the ends of the intervals of `y`."""
    y = encoding["y"]
    ends = {"y": {**y, "field": f"{y['field']}_lo"}, "y2": {"field": f"{y['field']}_hi"}}
    return mark("area", {**encoding, **ends}, where=f"{where} && isValid(datum.{y['field']}_lo)", opacity=0.13)


ZOOM = {
    "name": "zoom",
    "select": {"type": "interval", "zoom": "wheel![event.shiftKey]", "clear": "dblclick"},
    "bind": "scales",
}
"""Dragging moves the axes, the wheel with shift zooms, a double click resets; the wheel alone scrolls the page."""


def picked(field: str) -> dict[str, Any]:
    """Return a parameter with which a click on the legend keeps the marks of one value of the field visible."""
    return {"name": "pick", "select": {"type": "point", "fields": [field]}, "bind": "legend"}


TIP = {"tooltip": {"field": "tip"}}

FADED = {"opacity": {"condition": {"param": "pick", "value": 1}, "value": 0.12}}

POINT = (
    TIP | FADED | {"fillOpacity": {"condition": {"test": "datum.timing_valid === false", "value": 0.25}, "value": 1}}
)
"""The look of the points of cells; those without a valid timing are pale."""


def in_panels(layers: Sequence[Spec], transform: Sequence[Spec] = (), *, field: str) -> Spec:
    """Return a chart with a panel for each value of the field; of many, those nearest the chosen cell."""
    order = f"{field}_order"
    ranked = [
        {"window": [{"op": "dense_rank", "as": "panel_rank"}], "sort": [{"field": order}]},
        {"filter": f"datum.panel_rank <= {MOST_PANELS}"},
    ]
    return {
        "transform": [*transform, *ranked],
        "facet": {"field": field, "sort": {"field": f"{field}_place", "op": "min"}, "title": None},
        "columns": 3,
        "spec": {**PANEL, "layer": list(layers)},
    }


def lines_in_panels(x: Spec, y: Spec, colour: Spec, panel: str) -> Spec:
    """Return a chart with lines of one colour each."""
    drawn = f"isValid(datum.{y['field']})"
    look = {"x": x, "y": y, "color": colour}
    points = mark("point", {**look, **POINT}, where=drawn, size=55, filled=True)
    layers = [
        band(look, where=drawn),
        mark("line", {**look, **FADED}, where=drawn),
        {**points, "params": [ZOOM, picked(colour["field"])]},
    ]
    return in_panels(layers, field=panel)


def bars(label: str, value: str, title: str, *, colour: Mapping[str, Any] | None = None, percent: bool = False) -> Spec:
    """Return a chart with one horizontal bar for each label, the largest first, or in parts by `order` of the rows."""
    encoding = {
        "y": {
            "field": label,
            "type": "nominal",
            "title": None,
            "sort": {"field": "order", "op": "min"} if colour else {"field": value, "op": "max", "order": "descending"},
        },
        "x": {
            **quantity(value, title, **({"domain": [0, 1]} if percent else {})),
            "axis": {"format": ".0%" if percent else "~r", "tickCount": 5},
        },
        **TIP,
    }
    # The band leaves a gap between bars, so that neighbours of one colour stay apart.
    layers = [mark("bar", {**encoding, **({"color": colour} if colour else {})}, height={"band": 0.7})]
    if not colour:
        text = {**encoding, "text": {"field": value, "format": ".3~r"}}
        layers.append(mark("text", text, align="left", dx=4, clip=False))
    return {"width": 560, "height": {"step": 20}, "layer": layers}


def is_on_cpu(cells: pd.DataFrame) -> bool:
    """Return whether `gpus` counts processes, because no cell has a GPU."""
    return "device" in cells and set(cells["device"].dropna()) == {"cpu"}


def word(column: str, cells: pd.DataFrame) -> str:
    """Return a column's title: `batch per GPU`; without GPUs, `batch per process`."""
    title = WORDS.get(column, axis(column))
    return title.replace("GPUs", "processes").replace("GPU", "process") if is_on_cpu(cells) else title


def coloured_gpus(cells: pd.DataFrame) -> dict[str, Any]:
    """Return the encoding of the number of GPUs by colour: a number has the same one in every chart of these cells."""
    counts = sorted(set(cells["gpus"].dropna()))
    return category("gpus", word("gpus", cells), scale={"domain": counts})


def fixed_batch(cells: pd.DataFrame) -> str:
    """Return the title of the batch that stays the same with more GPUs."""
    return word(FIXED_SIDE[cells["scaling"].iloc[0]], cells)


def filter_value(value: Any) -> str:
    """Return an axis's value as it stands in a menu."""
    return label_of(numbers.fact(numbers.config_value(value)))


def ranked_panels(rows: Sequence[Row], titles: Sequence[str], columns: Sequence[str], first: Row | None) -> list[int]:
    """Return the place of each row's panel: the panel of `first`, then those alike in the most columns."""

    def unlike(row: Row) -> int:
        pairs = [(row[name], first[name]) for name in columns] if first is not None else []
        return sum(numbers.config_value(own) != numbers.config_value(other) for own, other in pairs)

    # Readers compare the chosen cell with those that differ from it in one axis.
    distance: dict[str, int] = {}
    for row, title in zip(rows, titles, strict=True):
        distance.setdefault(title, unlike(row))
    places = {title: place for place, title in enumerate(sorted(distance, key=lambda title: distance[title]))}
    return [places[title] for title in titles]


def panel_places(
    cells: pd.DataFrame, columns: Sequence[str], title: Callable[[Row, Sequence[str], pd.DataFrame], str]
) -> dict[str, int]:
    """Return the place of each panel by its title, in the order of the values of these columns."""
    rows = in_order(cells, columns).to_dict("records") if columns else cells.to_dict("records")
    return {name: place for place, name in enumerate(dict.fromkeys(title(row, columns, cells) for row in rows))}


def label_of(text: str) -> str:
    """Return a cell's label or a panel's title on one line, not too long for a chart."""
    return one_line(text, LABEL_CHARACTERS)


SERIES = {
    "light": ("#2160c4", "#d4570a", "#08401e", "#ae9063", "#300b53", "#24a1c8", "#66385c", "#888a8a"),
    "dark": ("#6ca6ff", "#ff9a57", "#a6ffcf", "#fece2c", "#8951ff", "#3af5f7", "#f21d5d", "#8698a4"),
}
"""The colours of lines and points, on white and on black. Two neighbours are never both dark: they touch in bars."""

MARKS = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")

_CLIP = re.compile(r"""(id="clip|url\(#clip)(\d+)""")

_INK = {"light": "#4d5663", "dark": "#aeb6c2"}
_FRAME = {"light": "#9aa3ae", "dark": "#5b6470"}
_GRID = {"light": "#e3e6ea", "dark": "#2e343d"}


def theme(name: str) -> dict[str, Any]:
    """Return Vega-Lite's `config` for the theme `light` or `dark`."""
    ink = _INK[name]
    axis = {"labelColor": ink, "titleColor": ink, "gridColor": _GRID[name], "domainColor": _FRAME[name]}
    return {
        "background": "transparent",
        "font": "system-ui, 'DejaVu Sans', sans-serif",
        "view": {"stroke": "transparent"},
        "range": {"category": list(SERIES[name]), "ordinal": list(SERIES[name]), "symbol": list(MARKS)},
        "axis": {**axis, "tickColor": _FRAME[name], "titleFontWeight": "normal", "labelLimit": 400},
        "axisY": {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": 0, "titleY": -10},
        "legend": {
            "labelColor": ink,
            "titleColor": ink,
            "orient": "top",
            "titleFontWeight": "normal",
            "columns": 4,
            "offset": 24,
            "symbolOpacity": 1,
            "symbolBaseFillColor": ink,
            "symbolBaseStrokeColor": ink,
        },
        "header": {
            "labelColor": ink,
            "labelFontWeight": "bold",
            "labelAnchor": "start",
            "labelLimit": 300,
            "labelExpr": "split(datum.label, ', ')",
            "title": None,
            "labelPadding": 26,
        },
        "style": {"cell": {"stroke": "transparent"}},
        "mark": {"color": SERIES[name][0]},
        "text": {"color": ink},
        "rule": {"color": ink},
        "tick": {"color": ink},
        "line": {"strokeWidth": 1.6},
    }


@cache
def script() -> str:
    """Return Vega-Embed with all that it needs as one script, which defines `vegaEmbed`."""
    import vl_convert  # here, because sweeps without a page need neither its time nor the package

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def svg(plot: Plot, cell_rows: Sequence[Row] = ()) -> str:
    """Draw the chart with its title on white; `cell_rows` are the data of a plot that has none. It loads nothing."""
    import vl_convert

    titled = {
        **(plot.spec or {}),
        "title": {"text": plot.title, "anchor": "start", "offset": 14},
        "data": {"values": list(cell_rows if plot.rows is None else plot.rows)},
        "config": {**theme("light"), "background": "white", "padding": 12},
    }
    drawing = vl_convert.vegalite_to_svg(titled, allowed_base_urls=[])
    # Vega counts clip paths in the whole process. Numbers from 0 give the same bytes for the same chart.
    places: dict[str, int] = {}
    return _CLIP.sub(lambda match: f"{match[1]}{places.setdefault(match[2], len(places))}", drawing)


def png(drawing: str) -> bytes:
    """Return an SVG as PNG, at twice its size."""
    import vl_convert

    return bytes(vl_convert.svg_to_png(drawing, scale=2))
