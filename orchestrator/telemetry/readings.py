"""What was seen of one rank's trial: samples of its devices, its phases, and who else was there."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TRAINING, WINDOW = "training", "window"
"""Phases by which trials are timed: see `trainables.context.Context.phase`."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """All that was seen of one rank's trial. Times are seconds since the watching began."""

    rank: int
    host: str
    cores: int
    """That this process may use."""
    series: Mapping[str, Mapping[str, array[float]]]
    """By device, then by column; every device has `time_s`, and NaN stands where nothing was known."""
    phases: Sequence[tuple[float, str]]
    """When which phase began; an empty one where none did."""
    foreign_load: Mapping[str, float | str]
    """Of the timed part: what else went on. Empty where nothing was timed."""
    failure: str
    """The first source that failed, and how; empty if none did."""
    ticks: int
    """Samples that the thread took."""
    machine: str = ""
    """What tells the host from others of its name, as `machine.machine_id`; empty where there is no telling."""

    @property
    def where(self) -> tuple[str, str]:
        """The same for ranks of one machine."""
        return self.host, self.machine


class Series:
    """Columns of one device that grow by a row at a time; a column that appears late, or ends early, is filled up."""

    def __init__(self) -> None:
        self.columns: dict[str, array[float]] = {"time_s": array("d")}

    def add(self, time_s: float, row: Mapping[str, float]) -> None:
        """One more row."""
        rows = len(self.columns["time_s"])
        for name in row:
            if name not in self.columns:
                self.columns[name] = array("d", [math.nan]) * rows
        for name, column in self.columns.items():
            column.append(time_s if name == "time_s" else row.get(name, math.nan))
