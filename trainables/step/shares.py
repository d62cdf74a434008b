"""Unequal shares of a batch: each rank's in proportion to its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from trainables.context import Batch, Context
from trainables.process_group import Gang


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
