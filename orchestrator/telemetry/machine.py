"""The resources of this machine, without asking Ray or torch."""

from __future__ import annotations

import hashlib
import math
import os
import socket
from pathlib import Path

from orchestrator.scheduling.node import Node
from orchestrator.telemetry.cpu import cores
from orchestrator.telemetry.gpu import gpu_models

_CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_machine() -> Node:
    """The machine as a node: the cores and GPUs that this process may use."""
    models = visible(gpu_models(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Node(name=socket.gethostname(), cpus=cpus(), gpus=len(models), gpu_type=models[0] if models else "")


def machine_id(boot_id: Path = _BOOT_ID) -> str:
    """Identifies this machine, even if others have its name, as in clouds; empty if that is impossible.

    A hash of the kernel's boot id, which does not reveal the machine. It is the same in all its containers, and changes
    at each restart. (/etc/machine-id may be the same on all machines made from one image.)
    """
    try:
        identity = boot_id.read_text().strip()
    except OSError:
        return ""
    return hashlib.sha256(f"sweep-orchestrator {identity}".encode()).hexdigest()[:8] if identity else ""


def cpus() -> int:
    """Cores this process may use: its affinity, limited by its control group's quota."""
    return min(len(cores()), _quota(_CGROUP_CPU_MAX))


def visible(models: tuple[str, ...], restriction: str | None) -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES=`restriction` leaves; None leaves all.

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


def _quota(cpu_max: Path) -> int:
    """The whole cores of a cgroup-v2 quota, at least one; without a quota, all cores."""
    try:
        quota, period = cpu_max.read_text().split()
    except OSError:
        return os.cpu_count() or 1
    return (os.cpu_count() or 1) if quota == "max" else max(1, math.floor(int(quota) / int(period)))
