"""The colours of the report: one set on white, one on black, each told apart by people who see no red, green or blue.

They differ in lightness as well as in hue: with hue alone orange and ochre are one colour to who sees no red.

Colour never stands alone: a line also has a marker and dashes of its own, so that a printed page can be read.
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""(on white, on black), by a series' place in the legend; those behind begin again.

Neighbours, which touch in bars, are not both dark: dark green beside dark violet is one colour at a glance.
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
"""What a hollow marker is filled with. Not quite white, so that no other white is taken for it."""


def variables() -> Mapping[str, tuple[str, str]]:
    """Every colour by the name of its CSS variable."""
    named = {"text-drawn": TEXT, "grid": GRID, "frame": FRAME, "guide": GUIDE, "paper": PAPER}
    return named | {f"series-{place}": pair for place, pair in enumerate(SERIES)}


def of(place: int) -> str:
    """The colour on white of a place in the legend."""
    return SERIES[place % len(SERIES)][0]
