"""Chooses readable units: `0.188 worker-seconds` rather than 5.21e-05 worker-hours."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.config.terms import AT_YOUR_PRICE
from orchestrator.text import figures

_TIMES = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}
_SPANS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}  # no days: GPUs have their price by the hour
_FAMILIES = (
    _TIMES,
    {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9},
    *({f"{whose}-{span}": size for span, size in _SPANS.items()} for whose in ("worker", "GPU")),
)
"""Families of units with their sizes, smallest first."""

_LEAST = 2.0
"""Values are written in the largest unit in which they are at least this: 90 s, but 2 min."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit for writing values."""

    name: str
    size: float
    """Relative to the unit that the values have."""

    def number(self, value: float) -> str:
        """The number without the unit, for columns with the unit in their heading; empty for NaN."""
        return "" if math.isnan(value) else figures.number(value / self.size)

    def text(self, value: float) -> str:
        """The number with the unit, if the unit has a name."""
        return self.number(value) if self.name == AT_YOUR_PRICE else f"{self.number(value)} {self.name}"


def suited(unit: str, *values: float) -> Unit:
    """The common unit for these values, given in `unit`: the one that suits the smallest of them; NaN is ignored.

    Units other than time, energy, and time of GPUs or workers are kept.
    """
    family = next((each for each in _FAMILIES if unit in each), {unit: 1.0})
    known = [abs(value) for value in values if not math.isnan(value) and value]
    if not known:
        return Unit(name=unit, size=1.0)
    least = min(known) * family[unit]
    name, size = next(iter(family.items()))
    for larger, its_size in family.items():
        if least >= _LEAST * its_size * (1 - 1e-9):  # 119.99999999999997 s is two minutes
            name, size = larger, its_size
    return Unit(name=name, size=size / family[unit])
