"""What the seeds of a sweep say about a claim. Pure values.

The two sides are compared by seed: times, rates and speed-ups by the logarithm of left over right, as all tables do
(`means`), accuracies and whatever may be 0 by left less right. The verdict is read off a 95% interval: *confirmed* if
all of it agrees with the claim, *refuted* if none does, else *inconclusive*. The margin, in the units of the sides, is
in the claim's favour: `a >= b` with a margin of 0.01 holds unless a is below b − 0.01, and `a == b`, which needs a
margin, also requires `a <= b + 0.01`. The interval is Student's t below ten seeds and the bootstrap from ten on. Fewer
seeds or epochs than the claim needs are inconclusive in any case, and so are seeds that all give the very same value of
a quantity subject to chance: three times the same figure is one figure, not certainty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.decision.claim import Claim
from orchestrator.decision.claim_expression import Claimed
from orchestrator.statistics.bootstrap import mean_interval
from orchestrator.statistics.means import TAIL, Array

CONFIRMED, REFUTED, INCONCLUSIVE = "confirmed", "refuted", "inconclusive"

_POWER_QUANTILE = 0.8416
"""Quantile of the normal distribution at 80%: the number of seeds is chosen to reach a verdict that often."""

_MOST_SEEDS = 100

_UNDECIDED = "the interval includes values for and against it"


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both sides of a claim by seed, arrays of one shape; NaN if a seed lacks a cell."""

    left: Array
    right: Array
    by_ratio: bool
    """Whether the sides are times, rates or the like, which are compared by ratio."""
    by_chance: bool = False
    """Whether they vary from seed to seed, as times and accuracies do, but counts need not."""

    @staticmethod
    def of(left: Array, right: Array, *, by_ratio: bool, margin: float = 0.0, by_chance: bool = False) -> Sides:
        """Keep the seeds that have both sides. Ratios need values above 0 and a margin below all of them."""
        known = ~np.isnan(left) & ~np.isnan(right)
        left, right = left[known], right[known]
        above = bool((left > 0).all() and (right > margin).all())
        return Sides(left=left, right=right, by_ratio=by_ratio and above, by_chance=by_chance)

    @property
    def are_copies(self) -> bool:
        """Whether all seeds have the same values although chance should have made them differ."""
        return self.by_chance and all(bool((side == side[0]).all()) for side in (self.left, self.right))

    def compared(self, shift: float = 0.0) -> Array:
        """Logarithm of left / (right + shift), or left − (right + shift)."""
        right = self.right + shift
        return np.asarray(np.log(self.left / right) if self.by_ratio else self.left - right)

    def mean(self, values: Array) -> float:
        """Geometric if the sides are compared by ratio."""
        return float(np.exp(np.log(values).mean()) if self.by_ratio else values.mean()) if len(values) else math.nan


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the measurements say about a claim; NaN means not known."""

    claim: Claim
    verdict: str
    why: str = ""
    """Why the verdict is inconclusive."""
    left: float = math.nan
    right: float = math.nan
    """Means of the two sides."""
    by_ratio: bool = False
    point: float = math.nan
    """Left side over right side where `by_ratio`, else left less right."""
    lo: float = math.nan
    hi: float = math.nan
    n: int = 0
    """Seeds that all cells of the claim have."""
    one_process: bool = False
    """Whether one process timed all seeds of a cell, so that the interval does not cover how processes differ."""
    seeds_to_settle: int | None = None
    """Total seeds to settle it; None if settled, if no practical number suffices, or if fewer than two say nothing."""


def judge(claim: Claim, sides: Sides, epochs: float = math.inf) -> Verdict:
    """The verdict on a claim; `epochs` is the fewest of the trials behind it, NaN if one does not report it."""
    n, order = len(sides.left), Claimed.parse(claim.expression).order
    tests = _tests(order, claim.margin, sides)
    found = _read(order, tests) if n else INCONCLUSIVE
    why = _why(claim, sides, epochs) or (_UNDECIDED if found == INCONCLUSIVE else "")
    point, lo, hi = _interval(sides.compared(), back=np.exp if sides.by_ratio else np.asarray)
    return Verdict(
        claim=claim,
        verdict=INCONCLUSIVE if why else found,
        why=why,
        left=sides.mean(sides.left),
        right=sides.mean(sides.right),
        by_ratio=sides.by_ratio,
        point=point,
        lo=lo,
        hi=hi,
        n=n,
        seeds_to_settle=_to_settle(claim, found, tests, n) if why else None,
    )


def _why(claim: Claim, sides: Sides, epochs: float) -> str:
    """Why a claim cannot be judged at all; empty if it can."""
    n = len(sides.left)
    if n == 0:
        return "no seed has values for both sides"
    if n < 2:
        return "one seed gives no interval"
    if n < claim.needs_seeds:
        return f"it needs {claim.needs_seeds} seeds, and has {n}"
    if sides.are_copies:
        return f"all {n} seeds are identical, which says nothing about chance"
    if claim.needs_epochs > 0 and not epochs >= claim.needs_epochs:
        had = "the trials do not report theirs" if math.isnan(epochs) else f"the shortest trial had {epochs:.4g}"
        return f"it needs {claim.needs_epochs:g} epochs, and {had}"
    return ""


def _tests(order: str, margin: float, sides: Sides) -> list[Array]:
    """Values by seed that are above (or not below) 0 if the claim holds; for an equality, both bounds."""
    below, above = sides.compared(-margin), -sides.compared(margin)
    return [below, above] if order == "==" else [below if order in (">", ">=") else above]


def _read(order: str, tests: Sequence[Array]) -> str:
    ends = [_interval(test)[1:] for test in tests]
    if any(math.isnan(end) for both in ends for end in both):
        return INCONCLUSIVE
    if all(_holds(order, lo) for lo, _ in ends):
        return CONFIRMED
    return INCONCLUSIVE if all(_holds(order, hi) for _, hi in ends) else REFUTED


def _holds(order: str, value: float) -> bool:
    return value > 0 if order in "<>" else value >= 0


def _interval(values: Array, back: Callable[[Any], Any] = np.asarray) -> tuple[float, float, float]:
    """The mean and the ends of its interval; NaN without values."""
    if not len(values):
        return math.nan, math.nan, math.nan
    found = mean_interval(values[None, :]).map(back)
    return float(found.point[0]), float(found.lo[0]), float(found.hi[0])


def _to_settle(claim: Claim, found: str, tests: Sequence[Array], n: int) -> int | None:
    """Seeds to settle an inconclusive claim; the number it requires if the present ones agree already."""
    if n < 2:
        return None
    if found != INCONCLUSIVE:
        return claim.needs_seeds if n < claim.needs_seeds else None
    seeds = _seeds(tests)
    return None if seeds is None else max(claim.needs_seeds, seeds)


def _seeds(tests: Sequence[Array]) -> int | None:
    """Seeds at which the interval would exclude the border if mean and deviation stay the same."""
    from scipy.special import stdtrit

    nearest = min(tests, key=lambda test: float(test.mean()))  # the strongest against, or weakest for
    gap, deviation = abs(float(nearest.mean())), float(nearest.std(ddof=1))
    for n in range(len(nearest) + 1, _MOST_SEEDS + 1):
        if (float(stdtrit(n - 1, TAIL)) + _POWER_QUANTILE) * deviation / math.sqrt(n) <= gap:
            return n
    return None
