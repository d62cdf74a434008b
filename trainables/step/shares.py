"""How the ranks of a trial divide its batch: shares by speed, passes by memory, and independent models.

A share is a rank's samples in one pass: the global batch is the sum of the shares × the passes of a step
(`grad_accum_steps`). It, and so the update, stays the same for any shares and number of passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from sweeps.layout import Layout
from sweeps.trial import Batch
from trainables.context import Context
from trainables.process_group import RankGroup
from trainables.rank import is_out_of_memory
from trainables.torch_state import derive


def proportional(total: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Divide `total` samples in proportion to `speeds` (all above 0), each share at least 1.

    The largest remainders are rounded up (Hamilton's method). Raises ValueError for fewer samples than ranks.
    """
    if total < len(speeds):
        raise ValueError(f"{total} samples are too few for {len(speeds)} ranks")
    spare = total - len(speeds)  # after one sample for each rank
    exactly = [Fraction(speed) for speed in speeds]  # rounding could give the faster of two nearly equal ranks less
    parts = [max(Fraction(0), total * speed / sum(exactly) - 1) for speed in exactly]
    parts = [spare * part / (sum(parts) or 1) for part in parts]
    shares = [1 + int(part) for part in parts]
    by_remainder = sorted(range(len(speeds)), key=lambda rank: int(parts[rank]) - parts[rank])
    for rank in by_remainder[: total - sum(shares)]:
        shares[rank] += 1
    return tuple(shares)


def share_by_speed(context: Context, rank_group: RankGroup, pass_s: float, whole: Batch) -> None:
    """Replace the context's batch by `whole` with shares in proportion to the ranks' speeds.

    `pass_s` is this rank's time for a pass over its share of the context's present batch: `whole`, or `whole` in more
    passes. Summarizes the new `shares`, and the speeds as `rank_samples_per_s`, both by rank.
    """
    speeds = rank_group.each(context.batch.shares[rank_group.rank] / pass_s)
    context.batch = replace(whole, shares=proportional(sum(whole.shares), speeds))
    context.summarize({"shares": list(context.batch.shares), "rank_samples_per_s": list(speeds)})


def fitting(batch: Batch, rank_group: RankGroup, take_pass: Callable[[int], None]) -> Batch:
    """Return the batch in as few passes per step as all ranks have memory for; the ranks agree on it.

    `take_pass` takes a rank's pass over so many samples without communication, and changes nothing. Batch norm sees the
    smaller passes. Raises the out-of-memory error if even the smallest passes do not fit.
    """
    fits, parts = batch, 1
    while error := out_of_memory(take_pass, fits.shares[rank_group.data_rank], rank_group):
        # Shares that follow speeds, such as (33, 31), seldom have a common divisor. Then their sum, 64, is divided, and
        # the shares keep their proportions except for rounding; the samples of a step stay the same.
        common, total, ranks = math.gcd(*batch.shares), sum(batch.shares), len(batch.shares)
        exact = [more for more in range(parts + 1, common + 1) if common % more == 0]
        more_parts = exact or [more for more in range(parts + 1, total // ranks + 1) if total % more == 0]
        if not more_parts:
            raise error
        parts = more_parts[0]
        shares = proportional(total // parts, batch.shares)
        fits = replace(batch, shares=shares, grad_accum_steps=batch.grad_accum_steps * parts)
    return fits


def out_of_memory(take_pass: Callable[[int], None], samples: int, rank_group: RankGroup) -> Exception | None:
    """Return the error if any rank runs out of memory, None if every pass fits. Raises other errors on all ranks.

    The error of a rank whose own pass fits is a ConnectionAbortedError.
    """

    def attempt() -> Exception | None:
        try:
            take_pass(samples)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return error.with_traceback(None)  # whose frames hold what did not fit
        return None

    own_error = rank_group.rank_local(attempt)
    (fails,) = rank_group.largest(float(own_error is not None))
    if not fails:
        return None
    if rank_group.device != "cpu":
        torch.cuda.empty_cache()
    # An error of the connection is never the root cause, which the other rank's error is.
    return own_error or ConnectionAbortedError("connection closed: another rank is out of memory")


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """The models that a trial trains, as one rank sees them: one for all ranks together, or one on each rank."""

    count: int  # the number of models
    context: Context
    """The context of the rank's model: its ranks, batch and seed. Its metrics and remarks are the trial's."""
    rank_group: RankGroup  # the ranks that train the rank's model
    ranks: RankGroup  # all ranks of the trial

    @staticmethod
    def of(context: Context, ranks: RankGroup) -> Replicas:
        """Return one model per rank for `independent`, else one; the first trains as in a trial of one rank."""
        if context.layout.models == 1:
            return Replicas(count=1, context=context, rank_group=ranks, ranks=ranks)
        share, passes = context.batch.shares[context.rank], context.batch.grad_accum_steps
        own = replace(
            context,
            rank=0,
            world_size=1,
            layout=Layout(strategy=context.layout.strategy),
            seed=derive(context.seed, "replica", context.rank) if context.rank else context.seed,
            batch=Batch(global_batch_size=share * passes, grad_accum_steps=passes, shares=(share,)),
        )
        alone = RankGroup(rank=0, world_size=1, device=ranks.device, gang_id="")
        return Replicas(count=ranks.world_size, context=own, rank_group=alone, ranks=ranks)

    def summarize(self, accuracy: float) -> None:
        """Summarize the accuracies of all models; the first one's is the trial's."""
        if self.count == 1:
            return
        every = self.ranks.each(accuracy)
        self.context.summarize({"replica_accuracies": list(every)})
        accuracies = ", ".join(f"{own:.4f}" for own in every)
        self.context.remark(
            f"{self.count} independent models, of which the first is reported; accuracies: {accuracies}"
        )
