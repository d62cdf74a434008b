"""Sources of figures, which may be missing or fail at any time, and the readings of one rank's trial from them.

A missing figure is empty, never 0.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

GB = 2**30

Read = Callable[[], Mapping[str, float]]  # reads a source once; returns figures by column name


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source that is read with one call."""

    name: str  # the name used in warnings
    read: Read
    counts: bool = False  # whether its figures are counters, which may be read less often


class Tap:
    """Reads several sources repeatedly. A source that fails is not read again, and its columns stay empty.

    Errors in `not_offered` mean that a source does not exist here; any other error is a failure, and `failure` holds
    the first one.
    """

    def __init__(self, sources: Sequence[Source], not_offered: tuple[type[Exception], ...]) -> None:
        self.sources = list(sources)  # the sources that are still read
        self._not_offered = not_offered
        self.failure = ""

    def read(self, *, counters: bool = True) -> dict[str, float]:
        """Return the current figures of all remaining sources, counters only if asked for. Never raises."""
        figures: dict[str, float] = {}
        # A copy, because a source that fails leaves the list.
        for source in [source for source in self.sources if counters or not source.counts]:
            try:
                figures |= source.read()
            except self._not_offered:
                self.sources.remove(source)
            except Exception as error:
                self.sources.remove(source)
                self.failure = self.failure or f"{source.name}: {error or type(error).__name__}"
        return figures


TRAINING, WINDOW = "training", "window"  # phases by which trials are timed: see `trainables.context.Context.phase`

REPORTED = "reported"
"""Not a phase: the trial has just reported something, which marks the timed part of a trial without phases."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """The telemetry of one rank's trial. Times are seconds since sampling began."""

    rank: int
    host: str
    cores: int  # how many cores this process may use
    series: Mapping[str, Mapping[str, array[float]]]
    """By device, then by column; every device has `time_s`. NaN means not measured."""
    phases: Sequence[tuple[float, str]]  # the start and name of each phase; the name is empty between phases
    foreign_load: Mapping[str, float | str]  # foreign load in the timed part; empty if nothing was timed
    failure: str  # the first source that failed, and how; empty if none did
    ticks: int  # how many samples the thread took
    machine: str = ""  # see `cpu.machine_id`

    @property
    def where(self) -> tuple[str, str]:
        """A key that is the same for all ranks of one machine."""
        return self.host, self.machine


class Series:
    """Columns of one device, extended row by row; missing values are filled with NaN."""

    def __init__(self) -> None:
        self.columns: dict[str, array[float]] = {"time_s": array("d")}

    def add(self, time_s: float, row: Mapping[str, float]) -> None:
        """Append a row."""
        rows = len(self.columns["time_s"])
        for name in row:
            if name not in self.columns:
                self.columns[name] = array("d", [math.nan]) * rows
        for name, column in self.columns.items():
            column.append(time_s if name == "time_s" else row.get(name, math.nan))
