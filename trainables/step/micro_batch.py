"""Shares too large for a device's memory are taken in several passes; the update stays the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from trainables.context import Batch
from trainables.outcome import Ending
from trainables.process_group import Gang
from trainables.step.shares import proportional


def fitting(batch: Batch, gang: Gang, take_pass: Callable[[int], None]) -> Batch:
    """The batch with as few passes a step as all ranks have memory for; they agree on it.

    `take_pass` takes a rank's pass over so many samples, talks to no other rank, and leaves everything as it was.
    Batch norm sees the smaller passes. Raises the out-of-memory error if even the smallest do not fit.
    """
    fits, parts = batch, 1
    while error := _failure(take_pass, fits.shares[gang.rank], gang):
        further = _further(batch.shares, parts)
        if not further:
            raise error
        parts = further[0]
        shares = proportional(sum(batch.shares) // parts, batch.shares)
        fits = replace(batch, shares=shares, grad_accum_steps=batch.grad_accum_steps * parts)
    return fits


def _further(shares: Sequence[int], parts: int) -> list[int]:
    """More parts than so many into which the shares can be divided; where none can, those into which their sum can.

    Shares that follow speeds seldom have a divisor in common: they then keep their proportions but for rounding, and
    the update stays the same, because the samples of a step do.
    """
    common, total = math.gcd(*shares), sum(shares)
    exact = [more for more in range(parts + 1, common + 1) if common % more == 0]
    return exact or [more for more in range(parts + 1, total // len(shares) + 1) if total % more == 0]


def _failure(take_pass: Callable[[int], None], samples: int, gang: Gang) -> Exception | None:
    """Out of memory, here or elsewhere; None where every rank's pass fits. Raises any other error, on all ranks."""

    def attempt() -> Exception | None:
        try:
            take_pass(samples)
        except (RuntimeError, MemoryError) as error:
            if Ending.of(error).status != "oom":
                raise
            return error.with_traceback(None)  # whose frames hold what did not fit
        return None

    mine = gang.lone(attempt)
    (fails,) = gang.largest(float(mine is not None))
    if not fails:
        return None
    if gang.device != "cpu":
        torch.cuda.empty_cache()
    return mine or MemoryError(f"another rank is out of memory with {samples} samples here")
