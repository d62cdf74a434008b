"""The samples of one device, and their means and totals over spans of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Spans = Sequence[tuple[float, float]]
"""Pairs of start and end, in seconds."""

EDGE_S = 0.05
"""How far a span may extend beyond the samples, because clocks are not read at exactly the same time."""


class Device:
    """The samples of one device."""

    def __init__(self, columns: Mapping[str, Sequence[float]]) -> None:
        self._columns = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
        self._time_s = self._columns["time_s"]

    def energy_j(self, over: Spans) -> tuple[float, str]:
        """Energy used in these spans, and its source: `counter`, or `power` (trapezoidal rule); else NaN and ``."""
        for source, total in (("counter", self._column("energy_j")), ("power", self._integrated("power_w"))):
            parts = [self._growth(total, *span) for span in over]
            if parts and not np.isnan(parts).any():
                return math.fsum(parts), source
        return math.nan, ""

    def mean(self, name: str, over: Spans) -> float:
        """The time-weighted mean of a column in these spans."""
        total, seconds = self._integrated(name), self.seconds(over)
        parts = [self._growth(total, *span) for span in over]
        return math.fsum(parts) / seconds if seconds > 0 else math.nan

    def growth(self, name: str, over: Spans) -> float:
        """The increase of a counter in these spans."""
        return math.fsum(self._growth(self._column(name), *span) for span in over) if over else math.nan

    def largest(self, name: str) -> float:
        """A column's largest value."""
        column = self._column(name)
        return float(np.nanmax(column)) if len(column) and not np.isnan(column).all() else math.nan

    def seconds(self, over: Spans) -> float:
        """The total length of these spans, within the time of the samples."""
        return math.fsum(min(end, self._time_s[-1]) - max(began, self._time_s[0]) for began, end in over)

    def bits(self, name: str, over: Spans) -> int:
        """The union of a column's flags over all samples in these spans."""
        column = self._column(name)
        within = np.zeros(len(column), dtype=bool)
        for began, end in over:
            within |= (self._time_s >= began) & (self._time_s <= end)
        seen = column[within & ~np.isnan(column)].astype(np.int64)
        return int(np.bitwise_or.reduce(seen)) if len(seen) else 0

    def _column(self, name: str) -> Floats:
        found = self._columns.get(name)
        return np.full(len(self._time_s), np.nan) if found is None else found

    def _integrated(self, name: str) -> Floats:
        column = self._column(name)
        areas = np.diff(self._time_s) * (column[1:] + column[:-1]) / 2
        return np.concatenate([column[:1] * 0, np.cumsum(areas)])

    def _growth(self, total: Floats, began: float, end: float) -> float:
        """The increase of a running total, which may be sampled less often than others; NaN if it ends too early."""
        end = min(end, self._time_s[-1])
        known = ~np.isnan(total)
        time_s, total = self._time_s[known], total[known]
        if not len(time_s) or began < time_s[0] - EDGE_S or end > time_s[-1] + EDGE_S or end < began:
            return math.nan
        at_ends = np.interp([began, end], time_s, total)
        return float(at_ends[1] - at_ends[0])
