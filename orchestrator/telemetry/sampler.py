"""Watches a trial from within its rank's process: samples at a steady pace, and one wherever a phase begins or ends."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.telemetry.company import Census, Owners, census, company, family
from orchestrator.telemetry.cpu import Process, Rapl, cores, cpu_tap
from orchestrator.telemetry.gpu import Gpus
from orchestrator.telemetry.tap import Tap

_log = logging.getLogger(__name__)

CENSUS_COST = 0.01
"""A census waits until it costs no more of the time since the one before; around a window it waits for nothing."""

COUNTERS_EVERY_S = 5.0
"""How often counters are read between the borders of phases: on an H200 they keep a core busy for 6 ms, all other
figures of a sample for .2 ms."""

LOOK_EVERY_S = 1.0
"""How often a trial's workers are looked for where it says nothing of its phases."""

TRAINING, WINDOW = "training", "window"
"""Phases by which trials are timed: see `trainables.context.Context.phase`."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How trials are watched; the driver is where the sweep was started, and no stranger to its trials."""

    hz: float = 5.0
    """Samples a second; 0: only at the borders of phases."""
    driver_host: str = field(default_factory=socket.gethostname)
    driver_pid: int = field(default_factory=os.getpid)


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
    company: Mapping[str, float | str]
    """Of the timed part: what else went on. Empty where nothing was timed."""
    failure: str
    """The first source that failed, and how; empty if none did."""
    ticks: int
    """Samples that the thread took."""


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


class Sampler:
    """The context of one rank's trial. Nothing that it meets reaches the trial: it tells once, and goes without."""

    def __init__(
        self,
        sampling: Sampling,
        *,
        rank: int,
        taps: Mapping[str, Tap],
        process: Process | None = None,
        gpus: Gpus | None = None,
        count: Callable[[float], Census] = census,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sampling, self._rank, self._taps, self._gpus = sampling, rank, taps, gpus
        self._process, self._count, self._now = process or Process(), count, now
        self._series = {device: Series() for device in taps}
        self._phases: list[tuple[float, str]] = []
        self._company = _Company(self._sampling, count, self._process)
        self._failure, self._ticks, self._last, self._counted = "", 0, -math.inf, -math.inf
        self._ends, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    @staticmethod
    def on(sampling: Sampling, request: Mapping[str, Any]) -> Sampler:
        """For a rank that is asked for this: its GPUs, or its process and, for rank 0, the node's energy."""
        process = Process()
        if request["device"] == "cpu":
            rapl = Rapl() if request["rank"] == 0 else None
            return Sampler(sampling, rank=request["rank"], taps={"cpu": cpu_tap(process, rapl)}, process=process)
        gpus = Gpus(max(1, int(request["gpus_per_rank"])), os.environ.get("CUDA_VISIBLE_DEVICES"))
        taps = {"cpu": cpu_tap(process), **gpus.taps}
        return Sampler(sampling, rank=request["rank"], taps=taps, process=process, gpus=gpus)

    def __enter__(self) -> Sampler:
        self._began = self._now()
        self._guarded(self._sample)
        if self._sampling.hz > 0:
            self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()
        self._guarded(self._sample)

    def observe(self, phase: str) -> None:
        """Another phase begins, or none: see `trainables.context.Context.observe`."""
        self._guarded(lambda: self._border(phase))

    def readings(self) -> Readings:
        """All that was seen, once the trial is over."""
        failure = self._failure or (self._gpus.failure if self._gpus else "")
        failure = failure or next((tap.failure for tap in self._taps.values() if tap.failure), "")
        if failure:
            _log.warning("telemetry goes on without what failed: %s", failure)
        return Readings(
            rank=self._rank,
            host=socket.gethostname(),
            cores=len(cores()),
            series={device: series.columns for device, series in self._series.items()},
            phases=tuple(self._phases),
            company=self._company.figures(),
            failure=failure,
            ticks=self._ticks,
        )

    def _border(self, phase: str) -> None:
        before = self._phases[-1][1] if self._phases else ""
        if phase:  # before a sample is taken: what newly found workers have done belongs to the time before the phase
            self._company.begins(phase, self._now() - self._began)
        if WINDOW in (phase, before) or self._now() - self._last > 0.5 / max(self._sampling.hz, 1.0):
            self._sample()
        if WINDOW in (phase, before) and self._gpus is not None:
            self._company.saw_processes(self._gpus.foreign_processes())
        if not phase:
            self._company.ends(before, self._now() - self._began)
        self._phases.append((self._now() - self._began, phase))

    def _run(self) -> None:
        while not self._ends.wait(1 / self._sampling.hz):
            if not self._phases:
                self._guarded(lambda: self._company.look(self._now() - self._began))
            self._guarded(lambda: self._sample(counters=self._now() - self._counted >= COUNTERS_EVERY_S))
            self._ticks += 1

    def _sample(self, *, counters: bool = True) -> None:
        with self._lock:
            if counters:
                self._counted = self._now()
            for device, tap in self._taps.items():
                row = tap.read(counters=counters)
                self._last = self._now()
                self._series[device].add(self._last - self._began, row)

    def _guarded(self, act: Callable[[], None]) -> None:
        """The trial is worth more than what is known about it."""
        try:
            act()
        except Exception as error:
            self._failure = self._failure or f"{type(error).__name__}: {error}"


class _Company:
    """The censuses around the timed part of a trial: a window, or else the training epochs from the second on."""

    def __init__(self, sampling: Sampling, count: Callable[[float], Census], process: Process) -> None:
        self._sampling, self._count, self._process = sampling, count, process
        self._epochs, self._cost_s = 0, 0.0
        self._first: Census | None = None
        self._last: Census | None = None
        self._windowed, self._looked_s = False, -math.inf
        self._foreign_processes: list[float] = []
        """On the GPUs, when the window began and when it ended."""

    def begins(self, phase: str, time_s: float) -> None:
        """A phase begins; the first timed one is counted from here."""
        self._epochs += phase == TRAINING
        if phase == WINDOW or (self._first is None and phase == TRAINING and self._epochs > 1):
            self._first, self._last = self._counted(time_s), None
            self._windowed = phase == WINDOW

    def saw_processes(self, foreign: float) -> None:
        """So many work on the GPUs besides this one; NaN: nobody knows."""
        if not math.isnan(foreign):
            self._foreign_processes.append(foreign)

    def ends(self, phase: str, time_s: float) -> None:
        """A phase ends; the last timed one is counted up to here, but not as often as that would take time."""
        if self._first is None or phase != (WINDOW if self._windowed else TRAINING):
            return
        since_s = time_s - (self._last or self._first).time_s
        if self._windowed or since_s * CENSUS_COST > self._cost_s:
            self._last = self._counted(time_s)

    def look(self, time_s: float) -> None:
        """Find the workers of a trial that names no phases, as one that is a command; a second after the last look."""
        if time_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = time_s
            self._counted(time_s)

    def figures(self) -> dict[str, float | str]:
        """Columns of the trial's row."""
        if self._first is None or self._last is None:
            return {}
        here = self._sampling.driver_host == socket.gethostname()
        owners = Owners.here(self._sampling.driver_pid if here else None)
        found = company(self._first, self._last, owners, len(cores()))
        if self._foreign_processes:
            found["foreign_gpu_processes"] = max(self._foreign_processes)
        return found

    def _counted(self, time_s: float) -> Census:
        started = time.perf_counter()
        found = self._count(time_s)
        self._cost_s = time.perf_counter() - started
        own = os.getpid()
        self._process.children = sorted(family(found.processes, Owners(roots=[own])) - {own})
        return found
