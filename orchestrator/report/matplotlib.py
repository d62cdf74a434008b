"""Draws plots with matplotlib, as SVG and PNG. This is the only module that imports matplotlib.

Figures are made without pyplot, which keeps state between calls. The palette has one set of colours for a white page
and one for a black page. Colours differ in lightness as well as hue, so that colour-blind readers can tell them apart,
and each line also has a different marker and dashes, so that a black-and-white print can be read.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from orchestrator.report.plot import Axis, Panel, Plot, Series

SERIES = (
    ("#2160c4", "#6ca6ff"),
    ("#d4570a", "#ff9a57"),
    ("#08401e", "#a6ffcf"),
    ("#ae9063", "#fece2c"),
    ("#300b53", "#8951ff"),
    ("#24a1c8", "#3af5f7"),
    ("#66385c", "#f21d5d"),
    ("#888a8a", "#8698a4"),
)
"""(on white, on black), by a series' place in the legend; after the last the first follows.

Two neighbours are never both dark, because neighbours touch in bars.
"""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[tuple[float, ...], ...] = (
    *((), (5, 1.5), (1.2, 1.2), (6, 1.5, 1.2, 1.5)),
    *((9, 2), (3, 1), (1, 2), (8, 1, 3, 1)),
)

TEXT = ("#4d5663", "#aeb6c2")
GRID = ("#e3e6ea", "#2e343d")
FRAME = ("#9aa3ae", "#5b6470")
GUIDE = ("#6b7480", "#8e97a3")
PAPER = ("#fffffe", "#14171c")
"""The fill of a hollow marker; not quite white, so that the page can replace it without replacing other white."""


def variables() -> Mapping[str, tuple[str, str]]:
    """Return all colours as (on white, on black), by the name of their CSS variable."""
    named = {"text-drawn": TEXT, "grid": GRID, "frame": FRAME, "guide": GUIDE, "paper": PAPER}
    return named | {f"series-{place}": pair for place, pair in enumerate(SERIES)}


def of(place: int) -> str:
    """Return the colour on white of a place in the legend."""
    return SERIES[place % len(SERIES)][0]


BAR_LABEL_WIDTH = 54
"""Characters per line of a bar's label."""
_MOST_MARKERS = 40
"""Lines with more points have no markers."""


def draw_panel(axes: Axes, plot: Plot, panel: Panel) -> None:
    """Draw a panel with its axes, without its title; each series is a group `series-<number>`."""
    for x, y in panel.guides:
        axes.plot(x, y, color=GUIDE[0], linewidth=1, dashes=(4, 3), zorder=1.5)
    for number, series in enumerate(panel.series):
        _draw_series(axes, series, number)
    _set_axis(axes, "x", plot.x)
    _set_axis(axes, "y", plot.y)
    axes.set_xlabel(plot.x.label, labelpad=2)
    axes.text(0, 1.025, plot.y.label, transform=axes.transAxes, ha="left", va="bottom")


def _draw_series(axes: Axes, series: Series, number: int) -> None:
    colour = of(series.place)
    if series.lo:
        axes.fill_between(series.x, series.lo, series.hi, color=colour, alpha=0.13, linewidth=0, zorder=2)
    known = [not math.isnan(lo) for lo in series.lo]
    alone = [  # points with an interval whose neighbours have none: there the band has no width
        index
        for index, one in enumerate(known)
        if one and not any(known[max(index - 1, 0) : index]) and not any(known[index + 1 : index + 2])
    ]
    if alone:
        x, lo, hi = ([ends[index] for index in alone] for ends in (series.x, series.lo, series.hi))
        axes.vlines(x, lo, hi, color=colour, alpha=0.5, linewidth=3, zorder=2)
    many = len(series.x) > _MOST_MARKERS
    look: dict[str, Any] = {"color": colour, "linewidth": 1.6, "zorder": 3}
    axes.plot(series.x, series.y, dashes=_dashes(series.place) if many else (None, None), **look)
    if many:
        return
    for state, fill in ((False, colour), (True, PAPER[0])):
        doubtful = series.doubtful or (False,) * len(series.x)
        kept = [index for index, each in enumerate(doubtful) if bool(each) is state]
        points = axes.plot(
            [series.x[index] for index in kept],
            [series.y[index] for index in kept],
            linestyle="none",
            marker=MARKERS[series.place % len(MARKERS)],
            markersize=5.5,
            markerfacecolor=fill,
            markeredgecolor=colour,
            zorder=4,
        )
        points[0].set_gid(f"series-{number}-{'doubtful' if state else 'sound'}")


def _dashes(place: int) -> Sequence[float | None]:
    return DASHES[place % len(DASHES)] or (None, None)


def _set_axis(axes: Axes, name: str, axis: Axis) -> None:
    one = axes.xaxis if name == "x" else axes.yaxis
    set_scale = axes.set_xscale if name == "x" else axes.set_yscale
    set_limits = axes.set_xlim if name == "x" else axes.set_ylim
    if axis.scale != "linear":
        set_scale("log", base=2 if axis.scale == "log2" else 10)
        one.set_minor_locator(NullLocator())
    if not (math.isnan(axis.lo) and math.isnan(axis.hi)):
        start, end = axes.get_xlim() if name == "x" else axes.get_ylim()
        if not math.isnan(axis.lo):
            start = axis.lo
        if not math.isnan(axis.hi):
            end = axis.hi
        else:
            # The data and a part of the whole axis. matplotlib's margin is a part of the data's span, and cuts markers
            # in half if the points are close together.
            top = float(axes.dataLim.x1 if name == "x" else axes.dataLim.y1)
            end = axis.lo + 1.08 * (top - axis.lo) if math.isfinite(top) and top > axis.lo else end
        set_limits(start, end if end > start else start + (abs(start) or 1.0))
    if axis.ticks:
        one.set_major_locator(FixedLocator(list(axis.ticks)))
    elif axis.scale == "linear":
        one.set_major_locator(MaxNLocator(nbins=5))
    one.set_major_formatter(PercentFormatter(xmax=1, decimals=0) if axis.percent else FuncFormatter(_tick))


def _tick(value: float, _: Any = None) -> str:
    """`0.05`, `32`, `1,024`, `20k`."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k" if abs(value) < 1e6 else f"{value / 1e6:,.4g}M"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def draw_bars(axes: Axes, plot: Plot, *, labels_above: bool = False) -> None:
    """Draw the bars of a plot, the first on top; each part is a group `bar-<row>-<part>`.

    `labels_above`: each label is above its bar instead of beside it, for narrow screens.
    """
    bars = plot.bars
    for row, bar in enumerate(bars):
        left = 0.0
        for place, part in enumerate(bar.parts):
            width = 0.0 if math.isnan(part) else max(part, 0.0)
            height = 0.42 if labels_above else 0.68
            patch = axes.barh(row, width, left=left, height=height, color=of(place), linewidth=0)
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
    _set_axis(axes, "x", plot.x)
    axes.set_xlabel(plot.x.label, labelpad=2)


def sign(plot: Plot, place: int) -> Line2D | Patch:
    """Return the legend's sign for a series or a part of a bar."""
    if plot.bars:
        return Patch(facecolor=of(place), linewidth=0)
    points = any(len(each.x) <= _MOST_MARKERS for panel in plot.panels for each in panel.series if each.place == place)
    look: dict[str, Any] = {"color": of(place), "linewidth": 1.6}
    if points:
        return Line2D([], [], marker=MARKERS[place % len(MARKERS)], markersize=5.5, **look)
    return Line2D([], [], dashes=_dashes(place), **look)


PANEL_INCHES = (3.75, 2.75)
"""Width and height. On the width of a phone's screen the text is as large as the page's small print."""

_COLUMNS = 3
_LEGEND_COLUMNS = 4
_CHARACTERS_AN_INCH = 13
_SIGN_WIDTH = 9
"""The width of a sign in the legend with its margins, in characters."""
_PNG_DPI = 144
_TITLE_WIDTH = 52
"""Characters per line of a panel's title."""
_BESIDE_LABEL = 34
"""Characters of a title that fit beside the axis label."""

_STYLE = {
    "text.parse_math": False,  # a config string may hold a dollar sign
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud
    "svg.hashsalt": "report",  # the same plot gives the same bytes
    "font.size": 9,
    "font.family": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FRAME[0],
    "axes.labelcolor": TEXT[0],
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID[0],
    "grid.linewidth": 0.8,
    "text.color": TEXT[0],
    "xtick.color": FRAME[0],
    "ytick.color": FRAME[0],
    "xtick.labelcolor": TEXT[0],
    "ytick.labelcolor": TEXT[0],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


def panel_svg(plot: Plot, panel: Panel) -> bytes:
    """Draw one panel without title and legend, which the page shows as text."""
    with _drawing():
        figure = Figure(figsize=PANEL_INCHES)
        figure.subplots_adjust(left=0.145, right=0.975, bottom=0.165, top=0.905)
        draw_panel(figure.add_subplot(), plot, panel)
        return _svg(figure, transparent=True)


def bars_svg(plot: Plot) -> bytes:
    """Draw the bars of a plot without legend."""
    with _drawing():
        return _svg(_bars_figure(plot), transparent=True)


def narrow_bars_svg(plot: Plot) -> bytes:
    """Draw the bars for a phone: as wide as one panel, with each label above its bar."""
    with _drawing():
        height = 0.6 + (0.4 if _longest(plot) <= BAR_LABEL_WIDTH else 0.6) * len(plot.bars)
        figure = Figure(figsize=(PANEL_INCHES[0], height))
        figure.subplots_adjust(left=0.03, right=0.96, bottom=0.5 / height, top=1 - 0.05 / height)
        draw_bars(figure.add_subplot(), plot, labels_above=True)
        return _svg(figure, transparent=True)


def swatch_svg(plot: Plot, place: int) -> bytes:
    """Draw the legend's sign of a series or a part of a bar."""
    with _drawing():
        figure = Figure(figsize=(0.42, 0.17))
        figure.legend(
            [sign(plot, place)], [""], loc="center", borderpad=0, handletextpad=0, handlelength=2.6, borderaxespad=0
        )
        return _svg(figure, transparent=True)


def plot_files(plot: Plot) -> dict[str, bytes]:
    """Draw the whole plot with title and legend on white; returns the files' contents by suffix, `.svg` and `.png`."""
    with _drawing():
        figure = _bars_figure(plot) if plot.bars else _panels_figure(plot)
        rows = 1 if plot.bars else math.ceil(len(plot.panels) / _COLUMNS)
        room_inches = _title_inches(plot)
        height = figure.get_size_inches()[1]
        longest = max(map(len, plot.legend), default=0)
        width = int(figure.get_size_inches()[0] * _CHARACTERS_AN_INCH)
        columns = max(1, min(_LEGEND_COLUMNS, width // (longest + _SIGN_WIDTH)))
        legend_inches = 0.22 * math.ceil(len(plot.legend) / columns) + 0.08
        figure.set_size_inches(figure.get_size_inches()[0], height + 0.4 + legend_inches)
        total = height + 0.4 + legend_inches
        figure.subplots_adjust(
            top=1 - (0.4 + 0.32 + room_inches) / total,
            bottom=(legend_inches + 0.45) / total,
            hspace=0.5 + 0.6 * room_inches if rows > 1 else None,
        )
        figure.suptitle(plot.title, x=0.02, y=1 - 0.08 / total, ha="left", va="top", fontsize=11, fontweight="bold")
        signs = [sign(plot, place) for place in plot.looks]
        figure.legend(signs, list(plot.legend), loc="lower center", ncols=columns, handlelength=2.6)
        png = _saved(figure, "png", dpi=_PNG_DPI, metadata={"Software": None})
        return {".svg": _svg(figure), ".png": png}


@contextmanager
def _drawing() -> Iterator[None]:
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        # A character that this font lacks is drawn by the reader's browser; only the PNG shows a box for it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def _panels_figure(plot: Plot) -> Figure:
    columns = min(_COLUMNS, max(2, len(plot.panels)))
    rows = math.ceil(len(plot.panels) / columns)
    room_inches = _title_inches(plot)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, (PANEL_INCHES[1] + room_inches) * rows))
    figure.subplots_adjust(left=0.055, right=0.985, wspace=0.18)
    for number, panel in enumerate(plot.panels, start=1):
        axes = figure.add_subplot(rows, min(columns, len(plot.panels)), number)
        draw_panel(axes, plot, panel)
        title = textwrap.fill(panel.title, _TITLE_WIDTH)
        axes.set_title(title, loc="right", fontsize=9, pad=18 if room_inches else None)
    return figure


def _title_inches(plot: Plot) -> float:
    """Return the height that the longest title needs above the axis label; 0 if all titles fit beside it."""
    longest = max((len(panel.title) for panel in plot.panels), default=0)
    return 0.0 if longest <= _BESIDE_LABEL else 0.05 + 0.16 * math.ceil(longest / _TITLE_WIDTH)


def _bars_figure(plot: Plot) -> Figure:
    longest = _longest(plot)
    pitch_inches = 0.3 if longest <= BAR_LABEL_WIDTH else 0.4
    figure = Figure(figsize=(2 * PANEL_INCHES[0], 0.75 + pitch_inches * len(plot.bars)))
    height = figure.get_size_inches()[1]
    figure.subplots_adjust(
        left=min(0.5, 0.02 + 0.0105 * longest), right=0.97, bottom=0.5 / height, top=1 - 0.1 / height
    )
    draw_bars(figure.add_subplot(), plot)
    return figure


def _longest(plot: Plot) -> int:
    return max(len(bar.label) for bar in plot.bars)


def _svg(figure: Figure, *, transparent: bool = False) -> bytes:
    return _saved(figure, "svg", transparent=transparent, metadata={"Date": None, "Creator": None})


def _saved(figure: Figure, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=form, **options)
    return file.getvalue()
