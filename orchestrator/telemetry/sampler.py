"""Samples a trial from within its rank's process: at a steady rate, and whenever a phase begins or ends."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from orchestrator.telemetry.cpu import Rapl, Usage, cores, cpu_tap, machine_id
from orchestrator.telemetry.foreign_load import SHORTEST_S, Census, TimedForeignLoad, census
from orchestrator.telemetry.gpu import Gpus
from orchestrator.telemetry.sources import REPORTED, WINDOW, Readings, Series, Tap
from sweeps.trial import RankRequest

_log = logging.getLogger(__name__)

COUNTERS_EVERY_S = 5.0
"""How often to read counters within a phase: on an H200 they take 6 ms of a core, a sample's other figures .2 ms."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample; the driver's load is not foreign to its trials."""

    hz: float = 5.0  # samples per second; 0: only when phases begin or end
    driver_host: str = field(default_factory=socket.gethostname)
    driver_pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The sources that one rank's sampler reads."""

    rank: int
    taps: Mapping[str, Tap]
    usage: Usage = field(default_factory=Usage)
    gpus: Gpus | None = None

    @staticmethod
    def of(request: RankRequest) -> Watched:
        """Return the sources of a rank: its process, and its GPUs or, for rank 0, the processors' energy."""
        usage, rank = Usage(), request.rank
        if request.trial.device == "cpu":
            # The counter is of the whole host: several ranks would count its energy several times.
            rapl = Rapl() if rank == 0 else None
            return Watched(rank=rank, taps={"cpu": cpu_tap(usage, rapl)}, usage=usage)
        gpus = Gpus(request.trial.gang.devices_per_rank, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return Watched(rank=rank, taps={"cpu": cpu_tap(usage), **gpus.taps}, usage=usage, gpus=gpus)


class Sampler:
    """Context manager around one rank's trial. Its errors never reach the trial: they are recorded in the readings."""

    def __init__(
        self,
        sampling: Sampling,
        watched: Watched,
        *,
        count: Callable[[float], Census] = census,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sampling, self._rank, self._taps, self._gpus = sampling, watched.rank, watched.taps, watched.gpus
        self._now = now
        self._series = {device: Series() for device in self._taps}
        self._phases: list[tuple[float, str]] = []
        self._reports_s: tuple[float, float] | None = None
        """The times of the first and the last report of a trial without phases."""
        self._foreign_load = TimedForeignLoad(count, watched.usage)
        self._failure, self._ticks, self._last, self._counted = "", 0, -math.inf, -math.inf
        self._ends, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def __enter__(self) -> Sampler:
        self._began = self._now()
        # Counters need a value at the start, however short the trial is.
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
        """Begin a phase; an empty name ends the current one. See `trainables.context.Context.observe`."""
        self._guarded(self._reported if phase == REPORTED else lambda: self._border(phase))

    def readings(self) -> Readings:
        """Return the readings, once the trial has ended."""
        failure = self._failure or (self._gpus.failure if self._gpus else "")
        failure = failure or next((tap.failure for tap in self._taps.values() if tap.failure), "")
        if failure:
            _log.warning("telemetry continues without a source that failed: %s", failure)
        host, sampling = socket.gethostname(), self._sampling
        driver_here = sampling.driver_pid if sampling.driver_host == host else None
        return Readings(
            rank=self._rank,
            host=host,
            cores=len(cores()),
            series={device: series.columns for device, series in self._series.items()},
            phases=self._timed_phases(),
            foreign_load=self._foreign_load.figures(driver_here),
            failure=failure,
            ticks=self._ticks,
            machine=machine_id(),
        )

    def _timed_phases(self) -> tuple[tuple[float, str], ...]:
        """Return the phases; for a trial without phases a window from its first to its last report."""
        # A user's trainable knows nothing of phases; between its reports it most likely trains.
        if self._phases or self._reports_s is None or self._reports_s[1] - self._reports_s[0] < SHORTEST_S:
            return tuple(self._phases)
        first_s, last_s = self._reports_s
        return (first_s, WINDOW), (last_s, "")

    def _reported(self) -> None:
        if self._phases:
            return
        now_s = self._now() - self._began
        self._reports_s = (self._reports_s[0] if self._reports_s else now_s, now_s)
        if self._foreign_load.reported(now_s):
            self._sample()
            if self._gpus is not None:
                self._foreign_load.saw_processes(self._gpus.neighbours(self._foreign_load.workers))

    def _border(self, phase: str) -> None:
        before = self._phases[-1][1] if self._phases else ""
        if phase:  # before the sample, so that earlier work of newly found workers counts before the phase
            self._foreign_load.begins(phase, self._now() - self._began)
        # Short epochs begin and end many times a second, and a sample for each would disturb what it measures.
        if WINDOW in (phase, before) or self._now() - self._last > 0.5 / max(self._sampling.hz, 1.0):
            self._sample()
        if WINDOW in (phase, before) and self._gpus is not None:
            self._foreign_load.saw_processes(self._gpus.neighbours(self._foreign_load.workers))
        if not phase:
            self._foreign_load.ends(before, self._now() - self._began)
        self._phases.append((self._now() - self._began, phase))

    def _run(self) -> None:
        while not self._ends.wait(1 / self._sampling.hz):
            if not self._phases:
                self._guarded(lambda: self._foreign_load.look(self._now() - self._began))
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
        """Call `act`, recording an exception: a failure of telemetry must not end the trial."""
        try:
            act()
        except Exception as error:
            self._failure = self._failure or f"{type(error).__name__}: {error}"
