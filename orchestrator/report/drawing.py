"""Pictures as figures of matplotlib, and these as files; with `marks` the only place that uses it.

matplotlib, because what it makes is a still picture: it prints, needs no script in the page, and is the same in the
SVG and PNG files. Libraries of interactive charts bring 1 to 5 MB of code into every page and want to evaluate it,
which the page's content security policy forbids. Figures are made without pyplot, which keeps state between calls.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from orchestrator.report import palette
from orchestrator.report.marks import BAR_LABEL_WIDTH, draw_bars, draw_panel, sign
from orchestrator.report.picture import Panel, Picture

PANEL_INCHES = (3.75, 2.75)
"""At the width of a phone's screen its text is as large as the page's small print."""

_COLUMNS = 3
_LEGEND_COLUMNS = 4
_CHARACTERS_AN_INCH = 13
_SIGN_WIDTH = 9
"""Characters that a sign in the legend takes, with the room beside it."""
_PNG_DPI = 144
_TITLE_WIDTH = 52
"""Characters of a panel's title in a line."""
_BESIDE_LABEL = 34
"""Characters of a title that fit beside the axis' label."""

_STYLE = {
    "text.parse_math": False,  # a config string may hold a dollar sign
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud
    "svg.hashsalt": "report",  # the same picture is the same bytes
    "font.size": 9,
    "font.family": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": palette.FRAME[0],
    "axes.labelcolor": palette.TEXT[0],
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": palette.GRID[0],
    "grid.linewidth": 0.8,
    "text.color": palette.TEXT[0],
    "xtick.color": palette.FRAME[0],
    "ytick.color": palette.FRAME[0],
    "xtick.labelcolor": palette.TEXT[0],
    "ytick.labelcolor": palette.TEXT[0],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


def panel_svg(picture: Picture, panel: Panel) -> bytes:
    """One panel without title and legend, which the page sets as text."""
    with _drawing():
        figure = Figure(figsize=PANEL_INCHES)
        figure.subplots_adjust(left=0.145, right=0.975, bottom=0.165, top=0.905)
        draw_panel(figure.add_subplot(), picture, panel)
        return _svg(figure, transparent=True)


def bars_svg(picture: Picture) -> bytes:
    """The bars of a picture without legend."""
    with _drawing():
        return _svg(_bars_figure(picture), transparent=True)


def narrow_bars_svg(picture: Picture) -> bytes:
    """The same for a phone: as wide as one panel, with each label above its bar."""
    with _drawing():
        height = 0.6 + (0.4 if _longest(picture) <= BAR_LABEL_WIDTH else 0.6) * len(picture.bars)
        figure = Figure(figsize=(PANEL_INCHES[0], height))
        figure.subplots_adjust(left=0.03, right=0.96, bottom=0.5 / height, top=1 - 0.05 / height)
        draw_bars(figure.add_subplot(), picture, labels_above=True)
        return _svg(figure, transparent=True)


def swatch_svg(picture: Picture, place: int) -> bytes:
    """The legend's sign of a series or a part."""
    with _drawing():
        figure = Figure(figsize=(0.42, 0.17))
        figure.legend(
            [sign(picture, place)], [""], loc="center", borderpad=0, handletextpad=0, handlelength=2.6, borderaxespad=0
        )
        return _svg(figure, transparent=True)


def picture_files(picture: Picture) -> dict[str, bytes]:
    """The whole picture with title and legend, on white, by the ending of its file: `.svg` and `.png`."""
    with _drawing():
        figure = _bars_figure(picture) if picture.bars else _panels_figure(picture)
        rows = 1 if picture.bars else math.ceil(len(picture.panels) / _COLUMNS)
        room_inches = _title_inches(picture)
        height = figure.get_size_inches()[1]
        columns = _legend_columns(picture, figure)
        legend_inches = 0.22 * math.ceil(len(picture.legend) / columns) + 0.08
        figure.set_size_inches(figure.get_size_inches()[0], height + 0.4 + legend_inches)
        total = height + 0.4 + legend_inches
        figure.subplots_adjust(
            top=1 - (0.4 + 0.32 + room_inches) / total,
            bottom=(legend_inches + 0.45) / total,
            hspace=0.5 + 0.6 * room_inches if rows > 1 else None,
        )
        figure.suptitle(picture.title, x=0.02, y=1 - 0.08 / total, ha="left", va="top", fontsize=11, fontweight="bold")
        signs = [sign(picture, place) for place in picture.looks]
        figure.legend(signs, list(picture.legend), loc="lower center", ncols=columns, handlelength=2.6)
        return {".svg": _svg(figure), ".png": _png(figure)}


def _legend_columns(picture: Picture, figure: Figure) -> int:
    longest = max(map(len, picture.legend), default=0)
    width = int(figure.get_size_inches()[0] * _CHARACTERS_AN_INCH)
    return max(1, min(_LEGEND_COLUMNS, width // (longest + _SIGN_WIDTH)))


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
        axes = figure.add_subplot(rows, min(columns, len(picture.panels)), number)
        draw_panel(axes, picture, panel)
        title = textwrap.fill(panel.title, _TITLE_WIDTH)
        axes.set_title(title, loc="right", fontsize=9, pad=18 if room_inches else None)
    return figure


def _title_inches(picture: Picture) -> float:
    """The room that the longest title takes above the axis' label; 0 where all titles fit beside it."""
    longest = max((len(panel.title) for panel in picture.panels), default=0)
    return 0.0 if longest <= _BESIDE_LABEL else 0.05 + 0.16 * math.ceil(longest / _TITLE_WIDTH)


def _bars_figure(picture: Picture) -> Figure:
    longest = _longest(picture)
    pitch_inches = 0.3 if longest <= BAR_LABEL_WIDTH else 0.4
    figure = Figure(figsize=(2 * PANEL_INCHES[0], 0.75 + pitch_inches * len(picture.bars)))
    height = figure.get_size_inches()[1]
    figure.subplots_adjust(
        left=min(0.5, 0.02 + 0.0105 * longest), right=0.97, bottom=0.5 / height, top=1 - 0.1 / height
    )
    draw_bars(figure.add_subplot(), picture)
    return figure


def _longest(picture: Picture) -> int:
    return max(len(bar.label) for bar in picture.bars)


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
