"""CPU time and memory of this process, the cores it may use, and the processors' energy, as the kernel reports them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.telemetry.tap import Source, Tap

GB = 2**30
TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE_BYTES = resource.getpagesize()

_OWN_AND_ENDED = slice(11, 15)
"""Fields of `_stat`: user and system CPU time of a process, and of its ended children."""
_STARTED = 19
"""Field of `_stat`: when the process started, in ticks since boot."""

NOT_OFFERED = (FileNotFoundError, PermissionError, NotADirectoryError)
"""Errors that mean that the kernel does not offer something, or not to this user."""


class Process:
    """The resources used by this process and its workers since construction."""

    def __init__(self) -> None:
        self._began_s = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
        self._children: Sequence[int] = ()
        self._before_s: dict[int, float] = {}
        self._most_s = 0.0

    @property
    def children(self) -> Sequence[int]:
        """The ids of the live worker processes, as set from outside."""
        return self._children

    @children.setter
    def children(self, found: Sequence[int]) -> None:
        self._children = found
        for child in found:
            if child not in self._before_s:
                self._before_s[child] = self._done_before(child)

    def read(self) -> Mapping[str, float]:
        """`cpu_s`: CPU seconds of all threads and workers, never decreasing; `rss_gb`: resident memory.

        Memory that a worker shares with this process is counted once. CPU time that an older worker used before it was
        first seen is not counted; its ended children are, because the kernel adds their time to the worker's.
        """
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = time.process_time() + ended.ru_utime + ended.ru_stime - sum(self._before_s.values())
        pages = _pages("self")[0]
        for child in self._children:
            try:
                resident, shared = _pages(str(child))
                cpu_s += _cpu_s(_stat(str(child)))
            except (OSError, ValueError):  # it has ended in the meantime
                continue
            pages += resident - shared
        self._most_s = max(self._most_s, cpu_s)  # the time of an orphan that ends is lost
        return {"cpu_s": self._most_s, "rss_gb": pages * _PAGE_BYTES / GB}

    def _done_before(self, child: int) -> float:
        try:
            stat = _stat(str(child))
        except (OSError, ValueError):
            return 0.0
        is_older = (stat[_STARTED] + 1) / TICKS_PER_S < self._began_s  # the kernel rounds down to a tick
        return _cpu_s(stat) if is_older else 0.0


class Rapl:
    """The energy counters of the processor packages (Linux powercap); usually readable by root only."""

    def __init__(self, root: Path = Path("/sys/class/powercap")) -> None:
        zones = [zone for zone in sorted(root.glob("*:*")) if _name_of(zone).startswith("package")]
        self._counters = {zone / "energy_uj": _limit(zone) for zone in zones}
        self._last: dict[Path, int] = {}
        self._total_uj = 0

    def read(self) -> Mapping[str, float]:
        """`energy_j`: energy of all packages since the first reading. Raises FileNotFoundError without counters."""
        if not self._counters:
            raise FileNotFoundError("no RAPL counter")
        for counter, limit in self._counters.items():
            now = int(counter.read_text())
            self._total_uj += (now - self._last.get(counter, now)) % limit  # it wraps around at its limit
            self._last[counter] = now
        return {"energy_j": self._total_uj / 1e6}


def cpu_tap(process: Process, rapl: Rapl | None = None) -> Tap:
    """The sources available on any machine, and RAPL if given."""
    sources = [Source(name="/proc", read=process.read)]
    if rapl is not None:
        sources.append(Source(name="RAPL", read=rapl.read))
    return Tap(sources, NOT_OFFERED)


def cores() -> frozenset[int]:
    """The cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def _pages(process: str) -> tuple[int, int]:
    """The numbers of resident pages, and of those that are shared."""
    with open(f"/proc/{process}/statm", "rb") as file:
        _, resident, shared, *_ = file.read().split()
    return int(resident), int(shared)


def _cpu_s(stat: Sequence[int]) -> float:
    return sum(stat[_OWN_AND_ENDED]) / TICKS_PER_S


def _stat(process: str) -> list[int]:
    """The numbers after the state in /proc/PID/stat; index 1 is ppid, the fourth field in proc(5)."""
    with open(f"/proc/{process}/stat", "rb") as file:
        behind_name = file.read().rpartition(b") ")[2].split()
    return [0, *map(int, behind_name[1:])]


def _name_of(zone: Path) -> str:
    try:
        return (zone / "name").read_text().strip()
    except OSError:
        return ""


def _limit(zone: Path) -> int:
    try:
        return int((zone / "max_energy_range_uj").read_text()) + 1
    except (OSError, ValueError):
        return 2**63
