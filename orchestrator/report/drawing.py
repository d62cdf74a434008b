"""Pictures drawn with matplotlib, the only place that uses it.

matplotlib, because what it makes is a still picture: it prints, needs no script in the page, and is the same in the
SVG and PNG files. Libraries of interactive charts bring 1 to 5 MB of code into every page and want to evaluate it,
which the page's content security policy forbids. Figures are made without pyplot, which keeps state between calls.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from orchestrator.report import ink
from orchestrator.report.picture import Axis, Bar, Panel, Picture, Series

PANEL_INCHES = (3.75, 2.75)
"""At the width of a phone's screen its text is as large as the page's small print."""

_COLUMNS = 3
_PNG_DPI = 144
_TITLE_WIDTH = 52
"""Characters of a panel's title in a line."""
_BAR_LABEL_WIDTH = 54
"""The same beside a bar."""
_BESIDE_LABEL = 34
"""Characters of a title that fit beside the axis' label."""
_MOST_MARKERS = 40
"""Curves of more points have no markers."""

_STYLE = {
    "text.parse_math": False,  # a config string may hold a dollar sign
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud
    "svg.hashsalt": "report",  # the same picture is the same bytes
    "font.size": 9,
    "font.family": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": ink.FRAME[0],
    "axes.labelcolor": ink.TEXT[0],
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": ink.GRID[0],
    "grid.linewidth": 0.8,
    "text.color": ink.TEXT[0],
    "xtick.color": ink.FRAME[0],
    "ytick.color": ink.FRAME[0],
    "xtick.labelcolor": ink.TEXT[0],
    "ytick.labelcolor": ink.TEXT[0],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


def panel_svg(picture: Picture, panel: Panel) -> bytes:
    """One panel without title and legend, which the page sets as text; each series is a group `series-<number>`."""
    with _drawing():
        figure = Figure(figsize=PANEL_INCHES)
        figure.subplots_adjust(left=0.145, right=0.975, bottom=0.165, top=0.905)
        _draw_panel(figure.add_subplot(), picture, panel)
        return _svg(figure, transparent=True)


def bars_svg(picture: Picture) -> bytes:
    """The bars of a picture without legend."""
    with _drawing():
        return _svg(_bars_figure(picture), transparent=True)


def swatch_svg(picture: Picture, place: int) -> bytes:
    """The legend's sign of a series or a part."""
    with _drawing():
        figure = Figure(figsize=(0.42, 0.17))
        handle = _handle(picture, place)
        figure.legend([handle], [""], loc="center", borderpad=0, handletextpad=0, handlelength=2.6, borderaxespad=0)
        return _svg(figure, transparent=True)


def picture_files(picture: Picture) -> dict[str, bytes]:
    """The whole picture with title and legend, on white, by the ending of its file: `.svg` and `.png`."""
    with _drawing():
        figure = _bars_figure(picture) if picture.bars else _panels_figure(picture)
        rows = 1 if picture.bars else math.ceil(len(picture.panels) / _COLUMNS)
        room_inches = _title_inches(picture)
        height = figure.get_size_inches()[1]
        legend_inches = 0.22 * math.ceil(len(picture.legend) / 4) + 0.08
        figure.set_size_inches(figure.get_size_inches()[0], height + 0.4 + legend_inches)
        total = height + 0.4 + legend_inches
        figure.subplots_adjust(
            top=1 - (0.4 + 0.32 + room_inches) / total,
            bottom=(legend_inches + 0.45) / total,
            hspace=0.5 + 0.6 * room_inches if rows > 1 else None,
        )
        figure.suptitle(picture.title, x=0.02, y=1 - 0.08 / total, ha="left", va="top", fontsize=11, fontweight="bold")
        handles = [_handle(picture, place) for place in range(len(picture.legend))]
        figure.legend(handles, list(picture.legend), loc="lower center", ncols=4, handlelength=2.6)
        return {".svg": _svg(figure), ".png": _png(figure)}


@contextmanager
def _drawing() -> Iterator[None]:
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        # A character that this font lacks is drawn by the reader's browser; only the PNG shows a box for it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def _panels_figure(picture: Picture) -> Figure:
    columns = min(_COLUMNS, max(2, len(picture.panels)))
    rows = math.ceil(len(picture.panels) / columns)
    room_inches = _title_inches(picture)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, (PANEL_INCHES[1] + room_inches) * rows))
    figure.subplots_adjust(left=0.055, right=0.985, wspace=0.18)
    for number, panel in enumerate(picture.panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        _draw_panel(axes, picture, panel)
        title = textwrap.fill(panel.title, _TITLE_WIDTH)
        axes.set_title(title, loc="right", fontsize=9, pad=18 if room_inches else None)
    return figure


def _title_inches(picture: Picture) -> float:
    """The room that the longest title takes above the axis' label; 0 where all titles fit beside it."""
    longest = max((len(panel.title) for panel in picture.panels), default=0)
    return 0.0 if longest <= _BESIDE_LABEL else 0.05 + 0.16 * math.ceil(longest / _TITLE_WIDTH)


def _draw_panel(axes: Axes, picture: Picture, panel: Panel) -> None:
    for x, y in panel.guides:
        axes.plot(x, y, color=ink.GUIDE[0], linewidth=1, dashes=(4, 3), zorder=1.5)
    for number, series in enumerate(panel.series):
        _draw_series(axes, series, number)
    _set_axis(axes, "x", picture.x)
    _set_axis(axes, "y", picture.y)
    axes.set_xlabel(picture.x.label, labelpad=2)
    axes.text(0, 1.025, picture.y.label, transform=axes.transAxes, ha="left", va="bottom")


def _draw_series(axes: Axes, series: Series, number: int) -> None:
    colour = ink.of(series.place)
    if series.lo:
        axes.fill_between(series.x, series.lo, series.hi, color=colour, alpha=0.13, linewidth=0, zorder=2)
    if series.lo and len(series.x) == 1:  # a band would have no width
        axes.vlines(series.x, series.lo, series.hi, color=colour, alpha=0.5, linewidth=3, zorder=2)
    many = len(series.x) > _MOST_MARKERS
    look: dict[str, Any] = {"color": colour, "linewidth": 1.6, "zorder": 3}
    axes.plot(series.x, series.y, dashes=_dashes(series.place) if many else (None, None), **look)
    if many:
        return
    for state, fill in ((False, colour), (True, ink.PAPER[0])):
        kept = [index for index in range(len(series.x)) if _doubtful(series, index) is state]
        points = axes.plot(
            [series.x[index] for index in kept],
            [series.y[index] for index in kept],
            linestyle="none",
            marker=ink.MARKERS[series.place % len(ink.MARKERS)],
            markersize=5.5,
            markerfacecolor=fill,
            markeredgecolor=colour,
            zorder=4,
        )
        points[0].set_gid(f"series-{number}-{'doubtful' if state else 'sound'}")


def _doubtful(series: Series, index: int) -> bool:
    return bool(series.doubtful) and series.doubtful[index]


def _dashes(place: int) -> Sequence[float | None]:
    return ink.DASHES[place % len(ink.DASHES)] or (None, None)


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


def _bars_figure(picture: Picture) -> Figure:
    longest = max(len(bar.label) for bar in picture.bars)
    pitch_inches = 0.3 if longest <= _BAR_LABEL_WIDTH else 0.4
    figure = Figure(figsize=(2 * PANEL_INCHES[0], 0.75 + pitch_inches * len(picture.bars)))
    height = figure.get_size_inches()[1]
    figure.subplots_adjust(
        left=min(0.5, 0.02 + 0.0105 * longest), right=0.97, bottom=0.5 / height, top=1 - 0.1 / height
    )
    axes = figure.add_subplot()
    _draw_bars(axes, picture.bars)
    _set_axis(axes, "x", picture.x)
    axes.set_xlabel(picture.x.label, labelpad=2)
    return figure


def _draw_bars(axes: Axes, bars: Sequence[Bar]) -> None:
    for row, bar in enumerate(bars):
        left = 0.0
        for place, part in enumerate(bar.parts):
            width = 0.0 if math.isnan(part) else max(part, 0.0)
            patch = axes.barh(row, width, left=left, height=0.68, color=ink.of(place), linewidth=0)
            patch[0].set_gid(f"bar-{row}-{place}")
            left += width
    labels = [textwrap.fill(bar.label, _BAR_LABEL_WIDTH, max_lines=2, placeholder="…") for bar in bars]
    axes.set_yticks(range(len(bars)), labels)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def _handle(picture: Picture, place: int) -> Line2D | Patch:
    if picture.bars:
        return Patch(facecolor=ink.of(place), linewidth=0)
    points = any(
        len(each.x) <= _MOST_MARKERS for panel in picture.panels for each in panel.series if each.place == place
    )
    look: dict[str, Any] = {"color": ink.of(place), "linewidth": 1.6}
    if points:
        return Line2D([], [], marker=ink.MARKERS[place % len(ink.MARKERS)], markersize=5.5, **look)
    return Line2D([], [], dashes=_dashes(place), **look)


def _svg(figure: Figure, *, transparent: bool = False) -> bytes:
    file = io.BytesIO()
    FigureCanvasSVG(figure)
    figure.savefig(file, format="svg", transparent=transparent, metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(file, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    return file.getvalue()
