"""Reads what the kernel reports: this process's CPU time and memory, the processors' energy, and this machine's size.

Nothing here imports Ray or torch.
"""

from __future__ import annotations

import hashlib
import math
import os
import resource
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.schedule.cluster import Node
from orchestrator.telemetry.gpu import gpu_models
from orchestrator.telemetry.sources import GB, Source, Tap

NOT_OFFERED = (FileNotFoundError, PermissionError, NotADirectoryError)
"""Errors that mean that the kernel does not offer something, or not to this user."""


class Usage:
    """The resources used by this process and its workers since construction."""

    def __init__(self) -> None:
        import psutil  # imported here so that mode=plan stays quick

        self._psutil = psutil
        self._own = psutil.Process()
        self._older = frozenset(psutil.pids())
        self._children: Sequence[int] = ()
        self._before_s: dict[int, float] = {}
        self._most_s = 0.0

    @property
    def children(self) -> Sequence[int]:
        """The ids of the live worker processes, as set from outside."""
        return self._children

    @children.setter
    def children(self, workers: Sequence[int]) -> None:
        for child in workers:
            if child not in self._before_s:
                self._before_s[child] = self._of_worker(child)[0] if child in self._older else 0.0
        self._children = workers  # last: another thread reads the times of all children

    def read(self) -> Mapping[str, float]:
        """Return `cpu_s`, CPU seconds of all threads and workers, never decreasing, and `rss_gb`, resident memory.

        Memory that a worker shares with this process is counted once. CPU time that an older worker used before it was
        first seen is not counted; its ended children are, because the kernel adds their time to the worker's.
        """
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own_s = time.process_time() + ended.ru_utime + ended.ru_stime - sum(self._before_s.values())
        workers = [self._of_worker(child) for child in self._children]
        # The time of an orphan that ends is lost.
        self._most_s = max(self._most_s, own_s + sum(cpu_s for cpu_s, _ in workers))
        own_bytes: int = self._own.memory_info().rss
        return {"cpu_s": self._most_s, "rss_gb": (own_bytes + sum(own for _, own in workers)) / GB}

    def _of_worker(self, worker: int) -> tuple[float, int]:
        """Return CPU seconds, with those of ended children, and unshared bytes; zeros once it has ended."""
        try:
            process = self._psutil.Process(worker)
            times, memory = process.cpu_times(), process.memory_info()
        except self._psutil.Error:
            return 0.0, 0
        cpu_s = times.user + times.system + times.children_user + times.children_system
        return cpu_s, memory.rss - getattr(memory, "shared", 0)


class Rapl:
    """The energy counters of the processor packages (Linux powercap); usually readable by root only."""

    def __init__(self, root: Path = Path("/sys/class/powercap")) -> None:
        zones = [zone for zone in sorted(root.glob("*:*")) if _name_of(zone).startswith("package")]
        self._counters = {zone / "energy_uj": _limit(zone) for zone in zones}
        self._last: dict[Path, int] = {}
        self._total_uj = 0

    def read(self) -> Mapping[str, float]:
        """Return `energy_j` of all packages since the first reading. Raises FileNotFoundError without counters."""
        if not self._counters:
            raise FileNotFoundError("no RAPL counter")
        for counter, limit in self._counters.items():
            now = int(counter.read_text())
            self._total_uj += (now - self._last.get(counter, now)) % limit  # it wraps around at its limit
            self._last[counter] = now
        return {"energy_j": self._total_uj / 1e6}


def cpu_tap(usage: Usage, rapl: Rapl | None = None) -> Tap:
    """Return a tap of the sources available on any machine, and RAPL if given."""
    sources = [Source(name="/proc", read=usage.read)]
    if rapl is not None:
        sources.append(Source(name="RAPL", read=rapl.read))
    return Tap(sources, NOT_OFFERED)


def cores() -> frozenset[int]:
    """Return the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


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


_CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_machine() -> Node:
    """Return this machine as a node: the cores and GPUs that this process may use."""
    models = visible(gpu_models(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Node(name=socket.gethostname(), cpus=cpus(), gpus=len(models), gpu_type=models[0] if models else "")


def machine_id(boot_id: Path = _BOOT_ID) -> str:
    """Return an identifier of this machine, even if others have its name, as in clouds; empty if that is impossible.

    A hash of the kernel's boot id, which does not reveal the machine. It is the same in all its containers, and changes
    at each restart. (/etc/machine-id may be the same on all machines made from one image.)
    """
    try:
        identity = boot_id.read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"sweep-orchestrator {identity}".encode()).hexdigest()[:8] if identity else ""


def cpus(cpu_max: Path = _CGROUP_CPU_MAX) -> int:
    """Return the number of cores this process may use: its affinity, limited by whole cores of a cgroup-v2 quota."""
    try:
        quota, period = cpu_max.read_text().split()
    except OSError:
        return len(cores())
    return len(cores()) if quota == "max" else min(len(cores()), max(1, math.floor(int(quota) / int(period))))


def visible(models: tuple[str, ...], restriction: str | None) -> tuple[str, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES=`restriction` leaves; None leaves all.

    As in CUDA, the first invalid entry ends the list. Devices given by UUID are assumed to be of the first model.
    """
    if restriction is None:
        return models
    kept: list[str] = []
    for entry in restriction.split(","):
        name = entry.strip()
        if name.startswith(("GPU-", "MIG-")) and models:
            kept.append(models[0])
        elif name.isdigit() and int(name) < len(models):
            kept.append(models[int(name)])
        else:
            break
    return tuple(kept)
