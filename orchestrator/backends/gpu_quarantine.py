"""GPUs that failed and are no longer used by this driver.

The next driver tries them once more: a GPU that was reset works again, and one that was not costs an attempt that
nobody is charged with.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.schedule.cluster import Node

WAIT_S = 60.0
"""How long a process that held a GPU before may take to be gone: many seconds on a busy machine, and the lost one that
a rank has instead only fails its trial."""

_held: list[int] = []
"""Files that say which GPUs this process has; the kernel closes them with the process."""


class Quarantine:
    """Devices as `<node id>/<what Ray calls the GPU>`."""

    def __init__(self) -> None:
        self.devices: set[str] = set()

    def add(self, devices: Iterable[str]) -> None:
        """They are lost."""
        self.devices |= set(devices)

    @property
    def node_ids(self) -> set[str]:
        """The nodes that have such devices."""
        return {device.partition("/")[0] for device in self.devices}

    def without(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """The nodes with as many GPUs as can be used."""
        return tuple(
            replace(node, gpus=max(0.0, node.gpus - len(of_node(self.devices, node.node_id)))) for node in nodes
        )


def of_node(devices: Iterable[str], node_id: str) -> set[str]:
    """The devices of one node, by their own names."""
    return {name for owner, _, name in (device.partition("/") for device in devices) if owner == node_id}


def take(given: Sequence[str], lost: Collection[str], count: int, folder: Path) -> list[str]:
    """The GPUs that this process is to use instead of those that Ray gave it: the same, but for lost ones.

    Ray cannot be told to leave a GPU out. So a rank that is given a lost one takes another of the node's `count`, of
    which fewer are asked for than there are, and a rank whose own was taken in this way does the same. Who has which is
    said by locked files in `folder`. As given where there are no others.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    healthy = [name for name in given if name not in lost]
    spare = [str(number) for number in range(count) if str(number) not in {*given, *lost}] if lost else []
    until, found = time.monotonic() + WAIT_S, list[str]()
    while len(found) < len(given) and time.monotonic() < until:
        for name in healthy + spare:
            if name not in found and len(found) < len(given) and _lock(folder / name):
                found.append(name)
        if not lost or len(found) == len(given) or len(healthy + spare) < len(given):
            break
        time.sleep(0.05)
    return found if len(found) == len(given) else list(given)


def _lock(path: Path) -> bool:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    _held.append(file)
    return True
