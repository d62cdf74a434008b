"""How long trials take, estimated from those that have finished."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.journal.record import TrialRecord
from sweeps.status import Status
from sweeps.trial import TrialSpec

_ALIKE_IN_TIME = frozenset(("seed", "lr_rule", "lr_multiplier", "probe", "repetition"))
"""Axes that hardly change how long a trial takes, and the marks of probes and repetitions."""


class Durations:
    """Wall times of ok trials, by cell and by everything that determines a trial's speed."""

    def __init__(self, records: Iterable[TrialRecord] = ()) -> None:
        self._seconds: dict[str, list[float]] = {}
        self._medians: dict[str, float] = {}
        for record in records:
            if record.status is Status.OK:
                self.add(record.cell_id, record.axes, record.wall_s)

    def add(self, cell_id: str, axes: Mapping[str, Any], wall_s: float) -> None:
        """Add a trial that was ok after `wall_s` seconds."""
        for key in (cell_id, speed(axes)):
            self._seconds.setdefault(key, []).append(wall_s)
            self._medians.pop(key, None)

    def expected_s(self, trial: TrialSpec) -> float | None:
        """Median over its cell, else over the trials that differ only in seed and learning rate; None if unknown."""
        return self._median(trial.cell_id) or self._median(speed(trial.axes))

    def _median(self, key: str) -> float | None:
        if key not in self._medians and key in self._seconds:
            self._medians[key] = statistics.median(self._seconds[key])
        return self._medians.get(key)


def speed(axes: Mapping[str, Any]) -> str:
    """A key that trials of about the same speed have in common."""
    return repr(sorted((axis, value) for axis, value in axes.items() if axis not in _ALIKE_IN_TIME))
