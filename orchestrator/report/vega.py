"""Draws Vega-Lite specs: the page's script and colours, and static files. This is the only module with vl_convert.

vl_convert contains Vega, so the page needs no network and no other file. The page evaluates Vega's expressions with an
interpreter instead of compiled functions, because its content security policy forbids the latter. Colours differ in
lightness as well as hue, so that colour-blind readers can tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import vl_convert

Spec = Mapping[str, Any]
"""A chart in Vega-Lite. Names of fields and expressions are constants of this package; texts are in the data."""

SERIES = {
    "light": ("#2160c4", "#d4570a", "#08401e", "#ae9063", "#300b53", "#24a1c8", "#66385c", "#888a8a"),
    "dark": ("#6ca6ff", "#ff9a57", "#a6ffcf", "#fece2c", "#8951ff", "#3af5f7", "#f21d5d", "#8698a4"),
}
"""The colours of lines and points, on white and on black. Two neighbours are never both dark: they touch in bars."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")

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
        "range": {"category": list(SERIES[name]), "ordinal": list(SERIES[name]), "symbol": list(SHAPES)},
        "axis": {**axis, "tickColor": _FRAME[name], "titleFontWeight": "normal", "labelLimit": 220},
        "axisY": {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": 0, "titleY": -10},
        "legend": {
            "labelColor": ink,
            "titleColor": ink,
            "orient": "top",
            "titleFontWeight": "normal",
            "columns": 4,
            "offset": 20,
            "symbolOpacity": 1,
            "symbolBaseFillColor": ink,
            "symbolBaseStrokeColor": ink,
        },
        "header": {
            "labelColor": ink,
            "labelFontWeight": "bold",
            "labelAnchor": "start",
            "labelLimit": 300,
            "title": None,
            "labelPadding": 20,
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
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def static_files(spec: Spec, title: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """Draw the chart with its title on white; return the files' contents by suffix, `.svg` and `.png`."""
    titled = {
        **spec,
        "title": {"text": title, "anchor": "start", "offset": 14},
        "data": {"values": list(rows)},
        "config": {**theme("light"), "background": "white", "padding": 12},
    }
    svg = vl_convert.vegalite_to_svg(titled, allowed_base_urls=[])  # a chart loads nothing
    numbers: dict[str, int] = {}  # Vega counts clip paths in the whole process; the same chart gives the same bytes
    svg = _CLIP.sub(lambda found: f"{found[1]}{numbers.setdefault(found[2], len(numbers))}", svg)
    return {".svg": svg.encode(errors="replace"), ".png": vl_convert.svg_to_png(svg, scale=2)}
