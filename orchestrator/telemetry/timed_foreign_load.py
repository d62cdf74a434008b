"""Measures the foreign load during the timed part of a trial."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

from orchestrator.telemetry.cpu import Usage, cores
from orchestrator.telemetry.foreign_load import Census, Owners, family, foreign_load
from orchestrator.telemetry.readings import TRAINING, WINDOW

CENSUS_COST = 0.01
"""Censuses may take at most this fraction of the time, except around a window, where each is taken."""

LOOK_EVERY_S = 1.0
"""How often to look for the workers of a trial that reports no phases."""


class TimedForeignLoad:
    """Takes censuses around the timed part of a trial: a window, or else the training epochs from the second on."""

    def __init__(self, count: Callable[[float], Census], usage: Usage) -> None:
        """`count` takes a census; `usage.children` is set to the workers that it finds."""
        self._count, self._usage = count, usage
        self._epochs, self._cost_s = 0, 0.0
        self._first: Census | None = None
        self._last: Census | None = None
        self._windowed, self._looked_s = False, -math.inf
        self._foreign_processes: list[float] = []
        """Foreign processes on the GPUs at the start and the end of the window."""

    def begins(self, phase: str, time_s: float) -> None:
        """A phase begins; the first timed one starts the measurement."""
        self._epochs += phase == TRAINING
        if phase == WINDOW or (self._first is None and phase == TRAINING and self._epochs > 1):
            self._first, self._last = self._counted(time_s), None
            self._windowed = phase == WINDOW

    def saw_processes(self, foreign: float) -> None:
        """Record how many other processes use the GPUs; NaN if unknown."""
        if not math.isnan(foreign):
            self._foreign_processes.append(foreign)

    def ends(self, phase: str, time_s: float) -> None:
        """A phase ends; a timed one ends the measurement, unless censuses would take too much time."""
        if self._first is None or phase != (WINDOW if self._windowed else TRAINING):
            return
        since_s = time_s - (self._last or self._first).time_s
        if self._windowed or since_s * CENSUS_COST > self._cost_s:
            self._last = self._counted(time_s)

    def look(self, time_s: float) -> None:
        """Find the workers of a trial that reports no phases, such as a command, at most once every LOOK_EVERY_S."""
        if time_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = time_s
            self._counted(time_s)

    def figures(self, driver: int | None) -> dict[str, float | str]:
        """Columns of the trial's row. The work of the `driver`, if it is on this machine, is not foreign."""
        if self._first is None or self._last is None:
            return {}
        found = foreign_load(self._first, self._last, Owners.here(driver), len(cores()))
        if self._foreign_processes:
            found["foreign_gpu_processes"] = max(self._foreign_processes)
        return found

    def _counted(self, time_s: float) -> Census:
        started = time.perf_counter()
        found = self._count(time_s)
        self._cost_s = time.perf_counter() - started
        own = os.getpid()
        self._usage.children = sorted(family(found.processes, Owners(roots=[own])) - {own})
        return found
