"""Foreign load: CPU time of processes that belong neither to the gang nor to what runs it, throttling and swapping."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.telemetry.cpu import cores

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat for busy time: user, nice, system, irq, softirq and steal (other guests of the host)."""
_STEAL = 7
_RAYS_OWN = ("gcs_server", "raylet")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process in the census."""

    parent: int
    cpu_s: float
    """CPU time of the process and of its ended children."""
    name: str


@dataclass(frozen=True, kw_only=True)
class Census:
    """All counters at one moment; none of them ever decreases."""

    time_s: float
    busy_s: float
    """Busy core-seconds of all cores that this process may use."""
    steal_s: float
    """The part of `busy_s` that the hypervisor gave to other guests."""
    processes: Mapping[int, Process]
    throttled: int | None
    """Periods in which the control group's CPU quota ran out; None without a quota."""
    swapped_pages: int


@dataclass(frozen=True, kw_only=True)
class Owners:
    """Processes whose work, with that of their descendants, is not foreign."""

    roots: Collection[int]
    names: Collection[str] = ()
    """Names of further such processes, whatever their parents."""

    @staticmethod
    def here(driver: int | None) -> Owners:
        """For this machine: the rank's own process, the driver if it is here, and the raylet that starts all ranks.

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
    busy, steal = _core_seconds(proc)
    return Census(
        time_s=time_s,
        busy_s=busy,
        steal_s=steal,
        processes=_processes(proc),
        throttled=_throttled(group),
        swapped_pages=_swapped(proc),
    )


def foreign_load(before: Census, after: Census, owners: Owners, count: int) -> dict[str, float | str]:
    """The foreign load on `count` cores between two censuses, as columns of the trial's row.

    `foreign_cpu`: the fraction of the cores' time used by other processes; `foreign_cpu_by`: the busiest of them.
    """
    ours = family(after.processes, owners) | family(before.processes, owners)
    spent = {pid: _spent(before, after, pid) for pid in {**before.processes, **after.processes}}
    own_s = sum(seconds for pid, seconds in spent.items() if pid in ours)
    core_s = count * (after.time_s - before.time_s)
    others = {pid: seconds for pid, seconds in spent.items() if pid not in ours and seconds > 0}
    found: dict[str, float | str] = {
        "foreign_cpu": max(0.0, after.busy_s - before.busy_s - own_s) / core_s,
        "swapped_pages": after.swapped_pages - before.swapped_pages,
    }
    if others:
        found["foreign_cpu_by"] = after.processes[max(others, key=lambda pid: others[pid])].name
    steal_s = after.steal_s - before.steal_s
    if steal_s > max(others.values(), default=0.0):
        found["foreign_cpu_by"] = "other guests of the host"
    if before.throttled is not None and after.throttled is not None:
        found["throttled_periods"] = after.throttled - before.throttled
    return found


def _spent(before: Census, after: Census, pid: int) -> float:
    """CPU time of a process between the censuses; negative for an ended one, whose time is added to its parent's."""
    if pid not in after.processes:
        return -before.processes[pid].cpu_s
    return after.processes[pid].cpu_s - (before.processes[pid].cpu_s if pid in before.processes else 0.0)


def family(processes: Mapping[int, Process], owners: Owners) -> set[int]:
    """The ids of the owners' processes and all their descendants."""
    found = {pid for pid, each in processes.items() if pid in owners.roots or each.name in owners.names}
    grown = True
    while grown:
        younger = {pid for pid, each in processes.items() if each.parent in found} - found
        found |= younger
        grown = bool(younger)
    return found


def _processes(proc: Path) -> dict[int, Process]:
    found = {}
    for entry in os.scandir(proc):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"{entry.path}/stat", "rb") as file:
                head, _, behind = file.read().rpartition(b") ")
        except OSError:  # it has ended in the meantime, or is not readable
            continue
        fields = behind.split()
        found[int(entry.name)] = Process(
            parent=int(fields[1]),
            cpu_s=sum(map(int, fields[11:15])) / _TICKS_PER_S,
            name=head.partition(b"(")[2].decode(errors="replace"),
        )
    return found


def _core_seconds(proc: Path) -> tuple[float, float]:
    mine = cores()
    lines = [line.split() for line in (proc / "stat").read_text().splitlines() if line.startswith("cpu")]
    counts = [list(map(int, line[1:])) for line in lines if line[0][3:].isdigit() and int(line[0][3:]) in mine]
    busy = sum(core[column] for core in counts for column in _BUSY)
    return busy / _TICKS_PER_S, sum(core[_STEAL] for core in counts) / _TICKS_PER_S


def _throttled(group: Path) -> int | None:
    """nr_throttled of the control group, version 2 or 1."""
    for path in (group / "cpu.stat", group / "cpu" / "cpu.stat"):
        try:
            counts = dict(line.split() for line in path.read_text().splitlines())
        except OSError:
            continue
        if "nr_throttled" in counts:
            return int(counts["nr_throttled"])
    return None


def _swapped(proc: Path) -> int:
    lines = (proc / "vmstat").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("pswpin ", "pswpout ")))
