"""The process group of a trial's ranks; it stays connected for later trials of the same processes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from sweeps.layout import Layout
from trainables.context import Context

Made = TypeVar("Made")

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for the others: longer than a compilation, shorter than `hang_s` by default."""


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """A rank and the ranks that it computes with; a group of one does not communicate."""

    rank: int
    world_size: int
    device: str
    gang_id: str

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum element-wise over the ranks, in place, on the rank's own device."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def largest(self, *values: float) -> tuple[float, ...]:
        """Return the largest value of any rank, for each argument."""
        if self.world_size == 1:
            return values
        largest = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return tuple(largest.tolist())

    def meet(self) -> None:
        """Wait until all ranks are here."""
        self.largest(0.0)

    def each(self, value: float) -> tuple[float, ...]:
        """Return every rank's value, in the order of ranks."""
        values = torch.zeros(self.world_size, dtype=torch.float64, device=self.device)
        values[self.rank] = value
        return tuple(self.sum(values).tolist())

    def rank_local(self, work: Callable[[], Made]) -> Made:
        """Return the result of this rank's own work, which does not communicate; all ranks call this together.

        If the work of any rank raises, all ranks raise at once: the others raise ConnectionAbortedError.
        """
        mine: Exception | None = None
        try:
            made = work()
        except Exception as error:
            mine = error
        try:
            (fails,) = self.largest(float(mine is not None))
        finally:
            if mine is not None:
                raise mine  # even if the device is unable to inform the others
        if fails:
            raise ConnectionAbortedError("connection closed: another rank failed first")
        return made

    def scatter(self, parts: list[torch.Tensor] | None, mine: torch.Tensor) -> torch.Tensor:
        """Write rank 0's part for this rank into `mine`; parts have one shape, and only rank 0 passes them."""
        if self.world_size == 1 and parts is not None:
            return parts[0]
        dist.scatter(mine, parts)
        return mine

    def share_of(self, count: int) -> slice:
        """Return the rank's contiguous part of `count` items; the parts of all ranks cover them without overlap."""
        return slice(count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size)


_connected: RankGroup | None = None


def join(context: Context) -> RankGroup:
    """Connect to the trial's other ranks through gloo or NCCL, unless the same gang is connected already.

    Rank 0 serves the rendezvous `tcp://host:port`. Raises ValueError if several ranks have none.
    """
    global _connected
    gang = RankGroup(rank=context.rank, world_size=context.world_size, device=context.device, gang_id=context.gang_id)
    if gang == _connected:
        return gang
    leave()
    if gang.world_size > 1 or context.layout.is_sharded:
        on_gpu = gang.device.startswith("cuda")
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=_store(context.rendezvous, gang),
            rank=gang.rank,
            world_size=gang.world_size,
            timeout=PATIENCE,
            device_id=torch.device(gang.device) if on_gpu else None,  # connects now, not within the first step
        )
        _connected = gang
    return gang


def _store(rendezvous: str | None, gang: RankGroup) -> Any:
    """Return the store through which the ranks find each other. On the loopback, no other machine reaches it."""
    if gang.world_size == 1:
        return dist.HashStore()  # type: ignore[attr-defined]
    meeting = urlsplit(rendezvous or "")
    if meeting.scheme != "tcp" or not meeting.hostname or not meeting.port:
        raise ValueError(f"rendezvous={rendezvous!r}: {gang.world_size} ranks need tcp://host:port to meet at")
    serves, listening = gang.rank == 0, None
    if serves and meeting.hostname == "127.0.0.1":  # by itself, a store listens on all addresses
        listening = socket.create_server((meeting.hostname, meeting.port)).detach()
    place = (meeting.hostname, meeting.port, gang.world_size, serves)
    return dist.TCPStore(*place, timeout=PATIENCE, master_listen_fd=listening)  # type: ignore[attr-defined]


def mesh(layout: Layout, device: str) -> DeviceMesh:
    """Return the ranks of the present gang as a grid: replicas × shards, or shards alone.

    Trials of one gang share it, because a grid has communicators that stay in memory.
    """
    sizes = (layout.replicas, layout.shards) if layout.replicas > 1 else (layout.shards,)
    if sizes not in _meshes:
        names = ("replicas", "shards")[-len(sizes) :]
        _meshes[sizes] = init_device_mesh(torch.device(device).type, sizes, mesh_dim_names=names)
    return _meshes[sizes]


_meshes: dict[tuple[int, ...], DeviceMesh] = {}


def leave() -> None:
    """Disconnect the last gang, if any."""
    global _connected
    if _connected is not None:
        _connected = None
        _meshes.clear()
        dist.destroy_process_group()
