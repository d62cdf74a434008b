"""Pictures as plain values: what is to be seen, before anything is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_PANELS = 12
MOST_SERIES = 8
"""In a panel: as many as there are colours and markers that can be told apart."""

MOST_BARS = 24
BAR_LABEL = 108
"""Characters beside a bar: as many as half of the picture holds on two lines."""

Points = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line: points of one x each, NaN where there is none. All tuples are as long as `x`, or empty."""

    label: str
    place: int
    """In the palette: it settles colour, marker and dashes, so that a label looks the same in every panel."""
    x: Points
    y: Points
    lo: Points = ()
    hi: Points = ()
    """The ends of what is drawn as a band behind the line."""
    tooltips: tuple[str, ...] = ()
    """What a reader is shown who points at a point."""
    doubtful: tuple[bool, ...] = ()
    """Points that are drawn hollow."""


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
    """Where the axis ends; NaN: where the data end."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One coordinate system; the panels of a picture share their axes."""

    title: str = ""
    series: Sequence[Series]
    guides: Sequence[tuple[Points, Points]] = ()
    """Thin dashed lines to compare with, as (x, y)."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One horizontal bar, divided into the parts that the legend names, from left to right."""

    label: str
    parts: Points


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Panels with one legend, and the data behind them."""

    name: str
    """The stem of its files' names."""
    title: str
    about: str
    """One or two sentences: what is drawn, and how to read it."""
    x: Axis = Axis(label="")
    y: Axis = Axis(label="")
    legend: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    """Which colour, marker and dashes each entry of the legend has; empty: the first for the first, and so on."""
    panels: Sequence[Panel] = ()
    bars: Sequence[Bar] = ()
    """Instead of panels."""
    data: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Rows of the CSV file."""
    absent: str = ""
    """Why there is nothing to draw."""
    remarks: Sequence[str] = ()
    """What a reader has to know who looks at it: what is not drawn, what is clipped."""

    @property
    def looks(self) -> tuple[int, ...]:
        """A place in the palette for each entry of the legend."""
        return self.places or tuple(range(len(self.legend)))

    @property
    def is_drawn(self) -> bool:
        """Whether there is anything to see."""
        return bool(self.panels or self.bars)
