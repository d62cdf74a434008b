"""Claims about a sweep, and what its seeds say of them. Pure values.

The verdict is read off the 95% interval of left side less right side, paired by seed: *confirmed* if all of it agrees
with the claim, *refuted* if none does, else *inconclusive*. The margin is given to the claim: `a >= b` with a margin of
0.01 holds as long as a is not more than 0.01 below b, and `a == b` needs one. The interval is Student's t below ten
seeds and the bootstrap from there on. Fewer seeds or epochs than the claim needs are inconclusive whatever they say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.decision.claim import Claim
from orchestrator.decision.claim_expression import Claimed
from orchestrator.statistics.bootstrap import mean_interval
from orchestrator.statistics.means import TAIL, Array

CONFIRMED, REFUTED, INCONCLUSIVE = "confirmed", "refuted", "inconclusive"

_POWER_QUANTILE = 0.8416
"""Of the normal distribution at 80%: with so many seeds a verdict comes with that probability."""

_MOST_SEEDS = 100


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the measurements say of a claim; NaN is not known."""

    claim: Claim
    verdict: str
    why: str = ""
    """Of an inconclusive one."""
    point: float = math.nan
    """Left side less right side."""
    lo: float = math.nan
    hi: float = math.nan
    n: int = 0
    """Seeds that all cells of the claim have."""
    seeds_to_settle: int | None = None
    """In all; None where it is settled, or where no practical number would do."""


def judge(claim: Claim, differences: Array, epochs: float = math.inf) -> Verdict:
    """The verdict on left side less right side by seed, NaN left out; `epochs` are the fewest of the trials behind."""
    known = differences[~np.isnan(differences)]
    n = len(known)
    interval = mean_interval(known[None, :]) if n else None
    point, lo, hi = (float(getattr(interval, end)[0]) if interval else math.nan for end in ("point", "lo", "hi"))
    order = Claimed.parse(claim.expression).order
    found, why = _read(order, claim.margin, lo, hi), ""
    if n == 0:
        why = "no seed has a value of both sides"
    elif n < 2:
        why = "one seed has no interval"
    elif n < claim.needs_seeds:
        why = f"it needs {claim.needs_seeds} seeds"
    elif epochs < claim.needs_epochs:
        why = f"it needs {claim.needs_epochs:g} epochs, and the shortest trial had {epochs:g}"
    elif found == INCONCLUSIVE:
        why = "the interval holds values on both sides"
    settle = _seeds(order, claim, known, point) if why and n >= 2 and found == INCONCLUSIVE else None
    if why and n < claim.needs_seeds:
        settle = max(claim.needs_seeds, settle or 0)
    verdict = INCONCLUSIVE if why else found
    return Verdict(claim=claim, verdict=verdict, why=why, point=point, lo=lo, hi=hi, n=n, seeds_to_settle=settle)


def _read(order: str, margin: float, lo: float, hi: float) -> str:
    if order == "==":
        inside, outside = -margin <= lo and hi <= margin, hi < -margin or lo > margin
    elif order in (">", ">="):
        inside, outside = _above(order, lo, -margin), not _above(order, hi, -margin)
    else:
        mirrored = order.replace("<", ">")
        inside, outside = _above(mirrored, -hi, -margin), not _above(mirrored, -lo, -margin)
    if math.isnan(lo) or math.isnan(hi):
        return INCONCLUSIVE
    return CONFIRMED if inside else REFUTED if outside else INCONCLUSIVE


def _above(order: str, value: float, bound: float) -> bool:
    return value > bound if order == ">" else value >= bound


def _seeds(order: str, claim: Claim, known: Array, point: float) -> int | None:
    """With which the interval would leave the border, if mean and deviation are as they were found."""
    from scipy.special import stdtrit

    deviation = float(known.std(ddof=1))
    gaps = {"==": abs(claim.margin - abs(point)), ">": abs(point + claim.margin), "<": abs(claim.margin - point)}
    gap = gaps[order[0] if order != "==" else order]
    for n in range(len(known) + 1, _MOST_SEEDS + 1):
        if (float(stdtrit(n - 1, TAIL)) + _POWER_QUANTILE) * deviation / math.sqrt(n) <= gap:
            return n
    return None
