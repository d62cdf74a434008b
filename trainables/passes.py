"""Which samples the ranks take, pass by pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from trainables.context import Batch
from trainables.seeds import generator


def passes(count: int, batch: Batch, *, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
    """For every forward pass of an epoch over `count` samples the indices that each rank takes: int64, by rank.

    The order is a permutation by seed and epoch. A rank's part of a step is contiguous in it, so that a step's samples
    are the same in the same order for any number of ranks and passes; the last partial step is left out.
    """
    order = torch.randperm(count, generator=generator(seed, "epoch", epoch))
    size, accumulate = batch.global_batch_size, batch.grad_accum_steps
    for step in order[: count // size * size].split(size):
        parts = step.split([accumulate * share for share in batch.shares])
        own = [part.split(share) for part, share in zip(parts, batch.shares, strict=True)]
        yield from zip(*own, strict=True)
