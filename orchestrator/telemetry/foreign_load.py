"""Foreign load: CPU time of processes that belong neither to the gang nor to what runs it, throttling and swapping.

A `Census` reads all counters once, `foreign_load` compares two of them, and `TimedForeignLoad` takes them around the
timed part of a trial.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.telemetry.cpu import Usage, cores
from orchestrator.telemetry.gpu import Neighbours
from orchestrator.telemetry.sources import TRAINING, WINDOW

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat for busy time: user, nice, system, irq, softirq and steal (other guests of the host)."""
_STEAL = 7
_RAYS_OWN = ("gcs_server", "raylet")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process in the census."""

    parent: int
    cpu_s: float  # CPU time of the process and of its ended children
    name: str


@dataclass(frozen=True, kw_only=True)
class Census:
    """All counters at one moment; none of them ever decreases."""

    time_s: float
    busy_s: float  # busy core-seconds of all cores that this process may use
    steal_s: float  # the part of `busy_s` that the hypervisor gave to other guests
    processes: Mapping[int, Process]
    throttled: int | None  # periods in which the control group's CPU quota ran out; None without a quota
    swapped_pages: int


@dataclass(frozen=True, kw_only=True)
class Owners:
    """Processes whose work, with that of their descendants, is not foreign."""

    roots: Collection[int]
    names: Collection[str] = ()  # names of further such processes, whatever their parents

    @staticmethod
    def here(driver: int | None) -> Owners:
        """Return the owners on this machine: the rank, the driver if it is here, and the raylet that starts all ranks.

        If the driver did not start Ray, Ray's other processes are recognised by their names.
        """
        known = _processes(Path("/proc"))
        parent = os.getppid()
        raylet = [parent] if parent in known and known[parent].name == "raylet" else []
        drivers = [driver] if driver in known else []
        whole = Owners(roots=[os.getpid(), *raylet, *drivers])
        is_cluster = bool(raylet) and parent not in family(known, Owners(roots=drivers))
        return Owners(roots=whole.roots, names=_RAYS_OWN) if is_cluster else whole


def census(time_s: float, proc: Path = Path("/proc"), group: Path = Path("/sys/fs/cgroup")) -> Census:
    """Take a census now; takes 10 ms on a machine with a hundred processes."""
    mine = cores()
    lines = [line.split() for line in (proc / "stat").read_text().splitlines() if line.startswith("cpu")]
    ticks = [list(map(int, line[1:])) for line in lines if line[0][3:].isdigit() and int(line[0][3:]) in mine]
    swaps = (line for line in (proc / "vmstat").read_text().splitlines() if line.startswith(("pswpin ", "pswpout ")))
    return Census(
        time_s=time_s,
        busy_s=sum(core[column] for core in ticks for column in _BUSY) / _TICKS_PER_S,
        steal_s=sum(core[_STEAL] for core in ticks) / _TICKS_PER_S,
        processes=_processes(proc),
        throttled=_throttled(group),
        swapped_pages=sum(int(line.split()[1]) for line in swaps),
    )


def foreign_load(before: Census, after: Census, owners: Owners, count: int) -> dict[str, float | str]:
    """Return the foreign load on `count` cores between two censuses, as columns of the trial's row.

    `foreign_cpu`: the fraction of the cores' time used by other processes; `foreign_cpu_by`: the busiest of them.
    """
    # A worker may have ended in between, or be new.
    ours = family(after.processes, owners) | family(before.processes, owners)
    spent = {pid: _spent(before, after, pid) for pid in {**before.processes, **after.processes}}
    own_s = sum(seconds for pid, seconds in spent.items() if pid in ours)
    core_s = count * (after.time_s - before.time_s)
    others = {pid: seconds for pid, seconds in spent.items() if pid not in ours and seconds > 0}
    load: dict[str, float | str] = {
        "foreign_cpu": max(0.0, after.busy_s - before.busy_s - own_s) / core_s,
        "swapped_pages": after.swapped_pages - before.swapped_pages,
    }
    if others:
        load["foreign_cpu_by"] = after.processes[max(others, key=lambda pid: others[pid])].name
    # Time that the hypervisor gave to other guests belongs to no process here.
    steal_s = after.steal_s - before.steal_s
    if steal_s > max(others.values(), default=0.0):
        load["foreign_cpu_by"] = "other guests of the host"
    if before.throttled is not None and after.throttled is not None:
        load["throttled_periods"] = after.throttled - before.throttled
    return load


def census_here() -> Census | None:
    """Take a census of this machine now; None if its kernel has no such counters."""
    return census(time.monotonic()) if Path("/proc/stat").exists() else None


def load_since(before: Census | None) -> tuple[float, str]:
    """Return the fraction of the cores' time that other programs used since a census, and the busiest of them.

    The caller and its children are not foreign. Without a census, nothing is.
    """
    if before is None:
        return 0.0, ""
    load = foreign_load(before, census(time.monotonic()), Owners(roots=[os.getpid()]), len(cores()))
    return float(load["foreign_cpu"]), str(load.get("foreign_cpu_by", ""))


def load_now(seconds: float = 0.5) -> tuple[float, str]:
    """Return the fraction of the cores' time that other programs use now, and the busiest of them, after `seconds`."""
    # Counters say nothing about now: only their growth does.
    before = census_here()
    time.sleep(seconds)
    return load_since(before)


def _spent(before: Census, after: Census, pid: int) -> float:
    """Return a process's CPU time between the censuses; negative if it ended, because its parent's then includes it."""
    if pid not in after.processes:
        return -before.processes[pid].cpu_s
    return after.processes[pid].cpu_s - (before.processes[pid].cpu_s if pid in before.processes else 0.0)


def family(processes: Mapping[int, Process], owners: Owners) -> set[int]:
    """Return the ids of the owners' processes and all their descendants."""
    members = {pid for pid, process in processes.items() if pid in owners.roots or process.name in owners.names}
    # Descendants at any depth: a command may start its workers through a shell.
    while younger := {pid for pid, process in processes.items() if process.parent in members} - members:
        members |= younger
    return members


def _processes(proc: Path) -> dict[int, Process]:
    processes = {}
    for entry in os.scandir(proc):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"{entry.path}/stat", "rb") as file:
                head, _, behind = file.read().rpartition(b") ")
        except OSError:  # it has ended in the meantime, or is not readable
            continue
        fields = behind.split()
        processes[int(entry.name)] = Process(
            parent=int(fields[1]),
            cpu_s=sum(map(int, fields[11:15])) / _TICKS_PER_S,
            name=head.partition(b"(")[2].decode(errors="replace"),
        )
    return processes


def _throttled(group: Path) -> int | None:
    """Return nr_throttled of the control group, version 2 or 1."""
    for path in (group / "cpu.stat", group / "cpu" / "cpu.stat"):
        try:
            counts = dict(line.split() for line in path.read_text().splitlines())
        except OSError:
            continue
        if "nr_throttled" in counts:
            return int(counts["nr_throttled"])
    return None


CENSUS_COST = 0.01  # censuses may take at most this fraction of the time, except around a window, where each is taken

SHORTEST_S = 1.0
"""If the reports of a trial without phases span less time, the load during the whole trial counts instead."""

LOOK_EVERY_S = 1.0  # how often to look for the workers of a trial that reports no phases


class TimedForeignLoad:
    """Takes censuses around the timed part of a trial: a window, or else the training epochs from the second on.

    For a trial that reports no phases, such as a command, the timed part lies between its first and its last report.
    """

    def __init__(self, count: Callable[[float], Census], usage: Usage) -> None:
        """`count` takes a census; `usage.children` is set to the workers that it finds."""
        self._count, self._usage = count, usage
        self._epochs, self._cost_s = 0, 0.0
        self._first: Census | None = None
        self._last: Census | None = None
        self._earliest: Census | None = None  # the first look at a trial that has reported no phase
        self._windowed, self._by_reports, self._looked_s = False, False, -math.inf
        self._neighbours: list[Neighbours] = []  # other processes on the GPUs at the start and the end of the window

    def begins(self, phase: str, time_s: float) -> None:
        """Note that a phase begins; the first timed one starts the measurement."""
        if self._by_reports:  # the trial has phases after all
            self._first = self._last = None
            self._by_reports = False
        self._epochs += phase == TRAINING
        # The first epoch warms up, and its timing does not count.
        if phase == WINDOW or (self._first is None and phase == TRAINING and self._epochs > 1):
            self._first, self._last = self._counted(time_s), None
            self._windowed = phase == WINDOW

    def saw_processes(self, neighbours: Neighbours) -> None:
        """Record which other processes are on the GPUs."""
        self._neighbours.append(neighbours)

    def ends(self, phase: str, time_s: float) -> None:
        """Note that a phase ends; a timed one ends the measurement, unless censuses would take too much time."""
        if self._first is None or phase != (WINDOW if self._windowed else TRAINING):
            return
        since_s = time_s - (self._last or self._first).time_s
        if self._windowed or since_s * CENSUS_COST > self._cost_s:
            self._last = self._counted(time_s)

    def look(self, time_s: float) -> None:
        """Find the workers of a trial that reports no phases, such as a command, at most once every LOOK_EVERY_S."""
        if time_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = time_s
            counted = self._counted(time_s)
            self._earliest = self._earliest or counted

    def reported(self, time_s: float) -> bool:
        """Note a report of a trial without phases; return whether a census was taken."""
        self._by_reports = True
        if self._first is None:
            self._first = self._counted(time_s)
            return True
        if (time_s - (self._last or self._first).time_s) * CENSUS_COST <= self._cost_s:
            return False
        self._last = self._counted(time_s)
        return True

    @property
    def workers(self) -> Sequence[int]:
        """Return the ids of this process's descendants at the last census."""
        return self._usage.children

    def figures(self, driver: int | None) -> dict[str, float | str]:
        """Return columns of the trial's row. The work of the `driver`, if it is on this machine, is not foreign."""
        first, last = self._first, self._last
        # Reports that follow at once span too little of the trial.
        if self._by_reports and first is not None and (last is None or last.time_s - first.time_s < SHORTEST_S):
            first, last = self._earliest, last or first
        if first is None or last is None or last.time_s <= first.time_s:
            return {}
        load = foreign_load(first, last, Owners.here(driver), len(cores()))
        for name, counts in (
            ("foreign_gpu_processes", [look.busy for look in self._neighbours]),
            ("idle_gpu_processes", [look.idle for look in self._neighbours]),
        ):
            if known := [count for count in counts if not math.isnan(count)]:
                load[name] = max(known)
        return load

    def _counted(self, time_s: float) -> Census:
        # A census takes longer the more processes a machine has.
        started = time.perf_counter()
        counted = self._count(time_s)
        self._cost_s = time.perf_counter() - started
        own = os.getpid()
        self._usage.children = sorted(family(counted.processes, Owners(roots=[own])) - {own})
        return counted
