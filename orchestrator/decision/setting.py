"""A cell as a program takes it: its axes, what runs it, and what it comes to. Pure values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean over a cell's ok seeds; NaN is not measured, and of an interval that one seed tells none."""

    value: float
    lo: float = math.nan
    hi: float = math.nan
    """Ends of the 95% interval."""
    unit: str
    """`1` of shares and ratios."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One of the cells that a recommendation is about."""

    cell_id: str
    name: str
    baseline_cell_id: str | None
    """The cell that `speedup` and `efficiency` compare with."""
    axes: Mapping[str, Any]
    """Of the sweep, but the seed: {axis: value}."""
    values: Mapping[str, Any]
    """What they come to for a training script: `gpus`, both sides of the batch, `lr` after the rule …"""
    overrides: tuple[str, ...]
    """The axes narrowed to this cell and its seeds."""
    command: str
    """The sweep's own command with these; it says again what has run, and runs nothing twice."""
    figures: Mapping[str, Figure]
    timing_valid: bool | None
    """None is not known."""
    note: str
    on_front: bool
    """Whether no other cell beats it in time, accuracy and cost at once."""
    p_best: float
    """NaN where one seed a cell tells nothing about chance, as the next."""
    p_within_margin: float
    why_not: str
    """Why it is not the one to use; empty of the one that is."""
