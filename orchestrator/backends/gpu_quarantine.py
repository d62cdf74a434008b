"""Keeps this driver from using GPUs that have failed.

The next driver tries them again: a GPU that was reset works again, and one that was not costs an uncharged attempt.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.schedule.cluster import Node

WAIT_S = 60.0  # seconds to wait for a process that still holds a GPU: it takes long to end on a busy machine

_held: list[int] = []  # open locked files, one for each GPU of this process; the kernel closes them with the process


class Quarantine:
    """The lost devices, each as `<node id>/<Ray's name of the GPU>`."""

    def __init__(self) -> None:
        self.devices: set[str] = set()

    def add(self, devices: Iterable[str]) -> None:
        """Add lost devices."""
        self.devices |= set(devices)

    @property
    def node_ids(self) -> set[str]:
        """The ids of nodes that have lost devices."""
        return {device.partition("/")[0] for device in self.devices}

    def without(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Return the nodes with the number of GPUs that can be used."""
        return tuple(
            replace(node, gpus=max(0.0, node.gpus - len(of_node(self.devices, node.node_id)))) for node in nodes
        )


def of_node(devices: Iterable[str], node_id: str) -> set[str]:
    """Return the devices of one node, by Ray's names."""
    return {name for owner, _, name in (device.partition("/") for device in devices) if owner == node_id}


def take(given: Sequence[str], lost: Collection[str], count: int, folder: Path) -> list[str]:
    """Return the GPUs that this process uses: those that Ray assigned, with lost ones replaced.

    Ray cannot be told to leave a GPU out. So a rank with a lost GPU takes another of the node's `count` GPUs, of which
    fewer are requested than exist, and a rank whose own GPU was taken in this way does the same. A locked file in
    `folder` marks each GPU in use. If there are no spare GPUs, the assigned ones are returned.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    healthy = [name for name in given if name not in lost]
    spare = [str(number) for number in range(count) if str(number) not in {*given, *lost}] if lost else []
    # The process before this one may still be letting go of its GPUs.
    until, taken = time.monotonic() + WAIT_S, list[str]()
    while len(taken) < len(given) and time.monotonic() < until:
        for name in healthy + spare:
            if name not in taken and len(taken) < len(given) and _lock(folder / name):
                taken.append(name)
        if not lost or len(taken) == len(given) or len(healthy + spare) < len(given):
            break
        time.sleep(0.05)
    return taken if len(taken) == len(given) else list(given)


def _lock(path: Path) -> bool:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    _held.append(file)
    return True
