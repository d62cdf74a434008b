"""The process group of a trial's ranks; it stays connected for later trials of the same processes."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from sweeps.layout import Layout
from sweeps.trial import ALONE
from trainables.context import Context, RequestError, master_of
from trainables.torch_private import fake_store

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
    tensor: int = field(default=1, compare=False)
    """The number of neighbouring ranks that divide each layer, and so have the same samples."""

    @property
    def data_rank(self) -> int:
        """The place of the rank's samples among those of all ranks."""
        return self.rank // self.tensor

    @property
    def data_ranks(self) -> int:
        """The number of ranks, or of groups of ranks, that have different samples."""
        return self.world_size // self.tensor

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
        """Return the part of `count` items for the rank's samples; the parts of all cover them without overlap."""
        return slice(count * self.data_rank // self.data_ranks, count * (self.data_rank + 1) // self.data_ranks)


_connected: RankGroup | None = None


def join(context: Context) -> RankGroup:
    """Connect to the trial's other ranks through gloo or NCCL, unless the same gang is connected already.

    Rank 0 serves the rendezvous `tcp://host:port`. Raises ValueError if several ranks have none, and RequestError if
    ranks that divide layers are on different nodes.
    """
    global _connected
    rank_group = RankGroup(
        rank=context.rank,
        world_size=context.world_size,
        device=context.device,
        gang_id=context.gang_id,
        tensor=context.layout.tensor,
    )
    # Connecting takes seconds with NCCL, and a gang runs many short trials.
    if rank_group == _connected:
        return rank_group
    leave()
    if rank_group.world_size > 1 or context.layout.is_sharded:
        if context.rendezvous == ALONE:
            dist.init_process_group("fake", store=fake_store(), rank=rank_group.rank, world_size=rank_group.world_size)
        else:
            on_gpu = rank_group.device.startswith("cuda")
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=_store(context),
                rank=rank_group.rank,
                world_size=rank_group.world_size,
                timeout=PATIENCE,
                device_id=torch.device(rank_group.device)
                if on_gpu
                else None,  # connects now, not within the first step
            )
        _connected = rank_group
    if rank_group.tensor > 1 and context.rendezvous != ALONE:
        _require_one_node(rank_group)
    return rank_group


def _require_one_node(rank_group: RankGroup) -> None:
    """Raise RequestError on all ranks if the ranks of any group that divides layers are on different nodes."""
    # Ranks exchange numbers, and a checksum tells hosts apart as well as their names do.
    nodes = rank_group.each(float(zlib.crc32(socket.gethostname().encode())))
    groups = [
        set(nodes[first : first + rank_group.tensor]) for first in range(0, rank_group.world_size, rank_group.tensor)
    ]
    if any(len(group) > 1 for group in groups):
        raise RequestError(
            f"tensor_parallel={rank_group.tensor} exchanges activations in every layer: each {rank_group.tensor} ranks"
            " must be on one node, and these are not"
        )


def rehearses() -> bool:
    """Return whether the process group is that of a rehearsal."""
    return dist.get_backend() == "fake"


def _store(context: Context) -> Any:
    """Return the store through which the ranks find each other. On the loopback, no other machine reaches it."""
    if context.world_size == 1:
        return dist.HashStore()  # type: ignore[attr-defined]
    host, port = master_of(context)
    serves, listening = context.rank == 0, None
    if serves and host == "127.0.0.1":  # by itself, a store listens on all addresses
        listening = socket.create_server((host, port)).detach()
    place = (host, port, context.world_size, serves)
    return dist.TCPStore(*place, timeout=PATIENCE, master_listen_fd=listening)  # type: ignore[attr-defined]


def mesh(layout: Layout, device: str) -> DeviceMesh:
    """Return the ranks of the present gang as a grid: replicas × shards × tensor, without the first and last if 1.

    Trials of one gang share it: a grid has communicators that stay in memory.
    """
    sizes = (layout.replicas, layout.shards, layout.tensor)
    if sizes not in _meshes:
        axes = {"replicas": layout.replicas, "shards": layout.shards, "tensor": layout.tensor}
        divided = {name: size for name, size in axes.items() if size > 1 or name == "shards"}
        kind = torch.device(device).type
        _meshes[sizes] = init_device_mesh(kind, tuple(divided.values()), mesh_dim_names=tuple(divided))
    return _meshes[sizes]


_meshes: dict[tuple[int, ...], DeviceMesh] = {}


def leave() -> None:
    """Disconnect the last gang, if any."""
    global _connected
    if _connected is not None:
        _connected = None
        _meshes.clear()
        dist.destroy_process_group()
