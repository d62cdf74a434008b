"""A cell for use by programs: its axes, the command that runs it, and its results. Pure values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean over a cell's ok seeds; NaN means not measured; interval ends are NaN with one seed."""

    value: float
    lo: float = math.nan
    hi: float = math.nan
    """Ends of the 95% interval."""
    unit: str
    """`1` for shares and ratios."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One of the cells that a recommendation discusses."""

    cell_id: str
    name: str
    baseline_cell_id: str | None
    """The baseline of `speedup` and `efficiency`."""
    axes: Mapping[str, Any]
    """The sweep's axes except the seed: {axis: value}."""
    values: Mapping[str, Any]
    """Resulting values for a training script: `gpus`, both sides of the batch, `lr` after the rule …"""
    overrides: tuple[str, ...]
    """The axes narrowed to this cell and its seeds."""
    command: str
    """The sweep's own command with these overrides; finished trials do not run again."""
    figures: Mapping[str, Figure]
    timing_valid: bool | None
    """None means not known."""
    note: str
    on_front: bool
    """Whether no other cell beats it in time, accuracy and cost at once."""
    p_best: float
    """NaN, like the next field, if one seed per cell says nothing about chance."""
    p_within_margin: float
    why_not: str
    """Why it is not the one to use; empty for the one that is."""
