"""Shares too large for a device's memory are taken in several passes; the update stays the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from trainables.context import Batch
from trainables.outcome import Ending
from trainables.process_group import Gang


def fitting(batch: Batch, gang: Gang, take_pass: Callable[[int], None]) -> Batch:
    """The batch with as few passes a step as all ranks have memory for; they agree on it.

    `take_pass` takes a rank's pass over so many samples, talks to no other rank, and leaves everything as it was.
    Batch norm sees the smaller passes. Raises the out-of-memory error if even the smallest do not fit.
    """
    common, parts = math.gcd(*batch.shares), 1
    while error := _failure(take_pass, batch.shares[gang.rank] // parts, gang):
        further = [more for more in range(parts + 1, common + 1) if common % more == 0]
        if not further:
            raise error
        parts = further[0]
    return replace(
        batch,
        shares=tuple(share // parts for share in batch.shares),
        grad_accum_steps=batch.grad_accum_steps * parts,
    )


def _failure(take_pass: Callable[[int], None], samples: int, gang: Gang) -> Exception | None:
    """Out of memory, here or elsewhere; None where every rank's pass fits."""
    mine: Exception | None = None
    try:
        take_pass(samples)
    except (RuntimeError, MemoryError) as error:
        if Ending.of(error).status != "oom":
            raise
        mine = error.with_traceback(None)  # whose frames hold what did not fit
    (fails,) = gang.largest(float(mine is not None))
    if not fails:
        return None
    if gang.device != "cpu":
        torch.cuda.empty_cache()
    return mine or MemoryError(f"another rank is out of memory with {samples} samples here")
