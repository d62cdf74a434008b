"""Batch norm over the samples of a replica, of all ranks, or of a ghost batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn

KINDS = "replica, sync, ghost:SIZE"


class GhostBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over `size` samples at a time, as if the batch were that small.

    Hoffer et al. 2017, "Train longer, generalize better", algorithm 1; the running statistics are updated by one
    ghost batch after the other. A last ghost batch may be smaller.
    """

    def __init__(self, num_features: int, *, size: int, **options: Any) -> None:
        """Take the options of `nn.BatchNorm2d`."""
        super().__init__(num_features, **options)
        self.size = size

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise N×C×H×W."""
        normalise = super().forward
        # In evaluation the running statistics are used, whatever the batch.
        if not self.training:
            return normalise(input)
        return torch.cat([normalise(ghost) for ghost in torch.split(input, self.size)])


def convert_batch_norm(module: nn.Module, kind: str) -> nn.Module:
    """Convert the 2-D batch norms of a module: to `replica` (as built), `sync`, or `ghost:SIZE` (samples).

    `sync` takes the statistics over all ranks, and needs GPUs when it trains. Parameters and statistics are kept.
    Raises ValueError for other kinds, and for a module without batch norm.
    """
    name, _, size = kind.partition(":")
    ghost = name == "ghost" and size.isdecimal() and int(size) > 0
    if kind not in ("replica", "sync") and not ghost:
        raise ValueError(f"batch_norm {kind!r} is not one of {KINDS}")
    if kind == "replica":
        return module
    if not any(isinstance(child, nn.BatchNorm2d) for child in module.modules()):
        raise ValueError(f"batch_norm {kind!r} asks for batch norm, but the model has none")
    if ghost:
        return _with_ghosts(module, int(size))
    synchronised: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
    return synchronised


def _with_ghosts(module: nn.Module, size: int) -> nn.Module:
    if isinstance(module, nn.BatchNorm2d):
        options = {name: getattr(module, name) for name in ("eps", "momentum", "affine", "track_running_stats")}
        ghost = GhostBatchNorm2d(module.num_features, size=size, **options)
        ghost.load_state_dict(module.state_dict())
        return ghost
    for name, child in module.named_children():
        setattr(module, name, _with_ghosts(child, size))
    return module


def synchronises(module: nn.Module) -> bool:
    """Return whether a forward pass in training waits for other ranks."""
    return any(isinstance(child, nn.SyncBatchNorm) for child in module.modules())


@contextmanager
def own_statistics(module: nn.Module) -> Iterator[None]:
    """Make synchronised batch norm use this rank's samples only, so that no pass in this block waits for others."""
    synchronised = [child for child in module.modules() if isinstance(child, nn.SyncBatchNorm)]
    for child in synchronised:
        # On the instance: the class is shared with models that other code uses.
        vars(child)["forward"] = MethodType(nn.BatchNorm2d.forward, child)
    try:
        yield
    finally:
        for child in synchronised:
            del vars(child)["forward"]
