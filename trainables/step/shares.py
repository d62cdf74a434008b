"""Unequal shares of a batch: each rank's in proportion to its speed.

Shares too large for a device's memory are taken in several passes; the update stays the same.

How many models a trial trains: one for all ranks together, or one on each, which know nothing of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from trainables.context import Batch, Context
from trainables.process_group import Gang
from trainables.rank import RankExit
from trainables.torch_state import derive


def proportional(total: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """`total` samples divided in proportion to `speeds` (all above 0), each share at least 1.

    The largest remainders are rounded up (Hamilton's method). Raises ValueError for fewer samples than ranks.
    """
    if total < len(speeds):
        raise ValueError(f"{total} samples are too few for {len(speeds)} ranks")
    spare = total - len(speeds)  # one each is given already
    exactly = [Fraction(speed) for speed in speeds]  # rounding could give the faster of two nearly equal ranks less
    parts = [max(Fraction(0), total * speed / sum(exactly) - 1) for speed in exactly]
    parts = [spare * part / (sum(parts) or 1) for part in parts]
    shares = [1 + int(part) for part in parts]
    by_remainder = sorted(range(len(speeds)), key=lambda rank: int(parts[rank]) - parts[rank])
    for rank in by_remainder[: total - sum(shares)]:
        shares[rank] += 1
    return tuple(shares)


def share_by_speed(context: Context, gang: Gang, pass_s: float, whole: Batch) -> None:
    """Give the context `whole`, every rank with its share by speed; the global batch stays.

    `pass_s` is this rank's time for a pass over its share of the context's batch so far: of `whole`, or of that in more
    passes. The metrics `shares` and `rank_samples_per_s` tell, by rank, the new shares and the speeds that they follow.
    """
    speeds = gang.each(context.batch.shares[gang.rank] / pass_s)
    context.batch = replace(whole, shares=proportional(sum(whole.shares), speeds))
    context.summarize({"shares": list(context.batch.shares), "rank_samples_per_s": list(speeds)})


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
            if RankExit.of(error).status != "oom":
                raise
            return error.with_traceback(None)  # whose frames hold what did not fit
        return None

    mine = gang.rank_local(attempt)
    (fails,) = gang.largest(float(mine is not None))
    if not fails:
        return None
    if gang.device != "cpu":
        torch.cuda.empty_cache()
    return mine or MemoryError(f"another rank is out of memory with {samples} samples here")


INDEPENDENT = "independent"


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """As one rank sees them."""

    count: int
    """Models."""
    context: Context
    """Of the rank's own model: its ranks, its batch, its seed. Its metrics and remarks are the trial's."""
    gang: Gang
    """The ranks that train it."""
    ranks: Gang
    """All ranks of the trial."""

    @staticmethod
    def of(context: Context, ranks: Gang) -> Replicas:
        """Where the strategy is `independent`, the first model is the one that a trial of one rank would train."""
        if context.strategy != INDEPENDENT or ranks.world_size == 1:
            return Replicas(count=1, context=context, gang=ranks, ranks=ranks)
        share, passes = context.batch.shares[context.rank], context.batch.grad_accum_steps
        own = replace(
            context,
            rank=0,
            world_size=1,
            seed=derive(context.seed, "replica", context.rank) if context.rank else context.seed,
            batch=Batch(global_batch_size=share * passes, grad_accum_steps=passes, shares=(share,)),
        )
        alone = Gang(rank=0, world_size=1, device=ranks.device, gang_id="")
        return Replicas(count=ranks.world_size, context=own, gang=alone, ranks=ranks)

    def summarize(self, accuracy: float) -> None:
        """Summarize the accuracies of all models; the trial's own is the first one's."""
        if self.count == 1:
            return
        every = self.ranks.each(accuracy)
        self.context.summarize({"replica_accuracies": list(every)})
        accuracies = ", ".join(f"{each:.4f}" for each in every)
        self.context.remark(
            f"{self.count} independent models, of which the first is reported; accuracies: {accuracies}"
        )
