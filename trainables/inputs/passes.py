"""Which samples the ranks take, pass by pass."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from trainables.context import Batch


def passes(order: Tensor, batch: Batch) -> Iterator[tuple[Tensor, ...]]:
    """For every forward pass over the samples in this order what each rank takes of it, by rank.

    `order` is a column a sample, or one value. A rank's part of a step is contiguous in it, so that a step's samples
    are the same in the same order for any number of ranks and passes; the last partial step is left out.
    """
    size, accumulate = batch.global_batch_size, batch.grad_accum_steps
    whole = order[..., : order.shape[-1] // size * size]
    for step in whole.split(size, dim=-1) if whole.shape[-1] else ():
        parts = step.split([accumulate * share for share in batch.shares], dim=-1)
        own = [part.split(share, dim=-1) for part, share in zip(parts, batch.shares, strict=True)]
        yield from zip(*own, strict=True)
