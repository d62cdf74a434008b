"""What is drawn into one coordinate system: lines, bands, points and bars; and the signs that stand for them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from orchestrator.report import palette
from orchestrator.report.picture import Axis, Panel, Picture, Series

BAR_LABEL_WIDTH = 54
"""Characters of a bar's label in a line."""
_MOST_MARKERS = 40
"""Curves of more points have no markers."""


def draw_panel(axes: Axes, picture: Picture, panel: Panel) -> None:
    """A panel with its axes, without its title; each series is a group `series-<number>`."""
    for x, y in panel.guides:
        axes.plot(x, y, color=palette.GUIDE[0], linewidth=1, dashes=(4, 3), zorder=1.5)
    for number, series in enumerate(panel.series):
        _draw_series(axes, series, number)
    _set_axis(axes, "x", picture.x)
    _set_axis(axes, "y", picture.y)
    axes.set_xlabel(picture.x.label, labelpad=2)
    axes.text(0, 1.025, picture.y.label, transform=axes.transAxes, ha="left", va="bottom")


def _draw_series(axes: Axes, series: Series, number: int) -> None:
    colour = palette.of(series.place)
    if series.lo:
        axes.fill_between(series.x, series.lo, series.hi, color=colour, alpha=0.13, linewidth=0, zorder=2)
    if alone := _alone(series):
        x, lo, hi = ([ends[index] for index in alone] for ends in (series.x, series.lo, series.hi))
        axes.vlines(x, lo, hi, color=colour, alpha=0.5, linewidth=3, zorder=2)
    many = len(series.x) > _MOST_MARKERS
    look: dict[str, Any] = {"color": colour, "linewidth": 1.6, "zorder": 3}
    axes.plot(series.x, series.y, dashes=_dashes(series.place) if many else (None, None), **look)
    if many:
        return
    for state, fill in ((False, colour), (True, palette.PAPER[0])):
        kept = [index for index in range(len(series.x)) if _doubtful(series, index) is state]
        points = axes.plot(
            [series.x[index] for index in kept],
            [series.y[index] for index in kept],
            linestyle="none",
            marker=palette.MARKERS[series.place % len(palette.MARKERS)],
            markersize=5.5,
            markerfacecolor=fill,
            markeredgecolor=colour,
            zorder=4,
        )
        points[0].set_gid(f"series-{number}-{'doubtful' if state else 'sound'}")


def _alone(series: Series) -> list[int]:
    """Points with an interval between points without one, where a band has no width."""
    known = [not math.isnan(lo) for lo in series.lo]
    return [
        index
        for index, one in enumerate(known)
        if one and not any(known[max(index - 1, 0) : index]) and not any(known[index + 1 : index + 2])
    ]


def _doubtful(series: Series, index: int) -> bool:
    return bool(series.doubtful) and series.doubtful[index]


def _dashes(place: int) -> Sequence[float | None]:
    return palette.DASHES[place % len(palette.DASHES)] or (None, None)


def _set_axis(axes: Axes, name: str, axis: Axis) -> None:
    one = axes.xaxis if name == "x" else axes.yaxis
    set_scale = axes.set_xscale if name == "x" else axes.set_yscale
    set_limits = axes.set_xlim if name == "x" else axes.set_ylim
    if axis.scale != "linear":
        set_scale("log", base=2 if axis.scale == "log2" else 10)
        one.set_minor_locator(NullLocator())
    if not (math.isnan(axis.lo) and math.isnan(axis.hi)):
        set_limits(None if math.isnan(axis.lo) else axis.lo, _top(axes, name, axis))
    if axis.ticks:
        one.set_major_locator(FixedLocator(list(axis.ticks)))
    elif axis.scale == "linear":
        one.set_major_locator(MaxNLocator(nbins=5))
    one.set_major_formatter(PercentFormatter(xmax=1, decimals=0) if axis.percent else FuncFormatter(_tick))


def _top(axes: Axes, name: str, axis: Axis) -> float | None:
    """Where the axis ends: above the data by a part of all that is shown.

    The library's own room is a part of the data's span, and cuts markers in half where all of them lie close together.
    """
    if not math.isnan(axis.hi):
        return axis.hi
    top = float(axes.dataLim.x1 if name == "x" else axes.dataLim.y1)
    return axis.lo + 1.08 * (top - axis.lo) if math.isfinite(top) and top > axis.lo else None


def _tick(value: float, _: Any = None) -> str:
    """`0.05`, `32`, `1,024`, `20k`."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k" if abs(value) < 1e6 else f"{value / 1e6:,.4g}M"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def draw_bars(axes: Axes, picture: Picture, *, labels_above: bool = False) -> None:
    """The bars of a picture, the first on top; each part is a group `bar-<row>-<part>`.

    `labels_above`: each label stands above its bar instead of beside it, for narrow screens.
    """
    bars = picture.bars
    for row, bar in enumerate(bars):
        left = 0.0
        for place, part in enumerate(bar.parts):
            width = 0.0 if math.isnan(part) else max(part, 0.0)
            height = 0.42 if labels_above else 0.68
            patch = axes.barh(row, width, left=left, height=height, color=palette.of(place), linewidth=0)
            patch[0].set_gid(f"bar-{row}-{place}")
            left += width
    labels = [textwrap.fill(bar.label, BAR_LABEL_WIDTH, max_lines=2, placeholder="…") for bar in bars]
    if labels_above:
        axes.set_yticks([])
        for row, label in enumerate(labels):
            axes.annotate(
                label, (0, row - 0.25), xycoords=("axes fraction", "data"), va="bottom", annotation_clip=False
            )
        axes.set_ylim(len(bars) - 0.6, -0.8)
    else:
        axes.set_yticks(range(len(bars)), labels)
        axes.set_ylim(len(bars) - 0.4, -0.6)  # the first on top, and no room for more
    axes.grid(axis="y", visible=False)
    _set_axis(axes, "x", picture.x)
    axes.set_xlabel(picture.x.label, labelpad=2)


def sign(picture: Picture, place: int) -> Line2D | Patch:
    """What the legend shows beside a series' or a part's name."""
    if picture.bars:
        return Patch(facecolor=palette.of(place), linewidth=0)
    points = any(
        len(each.x) <= _MOST_MARKERS for panel in picture.panels for each in panel.series if each.place == place
    )
    look: dict[str, Any] = {"color": palette.of(place), "linewidth": 1.6}
    if points:
        return Line2D([], [], marker=palette.MARKERS[place % len(palette.MARKERS)], markersize=5.5, **look)
    return Line2D([], [], dashes=_dashes(place), **look)
