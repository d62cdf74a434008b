"""Tests whether a difference is within a margin, beyond it, or neither: numbers in, verdicts out.

Two one-sided tests: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach for assessing
the equivalence of average bioavailability", Journal of Pharmacokinetics and Biopharmaceutics 15 (1987). A difference is
*equivalent* if its 90% interval is within ±margin, *worse* if all of it is below −margin, *better* if all of it is
above the margin, else *inconclusive*. Each false claim has a probability of at most 5%, for each comparison alone.
Assumes independent normal differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.statistics.margins import excess

EQUIVALENT, WORSE, BETTER, INCONCLUSIVE = "equivalent", "worse", "better", "inconclusive"

LEVEL = 0.05  # the level of each one-sided test


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean difference with its standard error."""

    point: float
    error: float  # standard error of `point`
    freedom: float  # degrees of freedom of `error`

    def verdict(self, margin: float) -> str:
        """Return one of the four verdicts; empty without an interval."""
        if not (math.isfinite(self.point) and math.isfinite(self.error) and self.freedom > 0):
            return ""
        half = quantile(self.freedom) * self.error
        lo, hi = self.point - half, self.point + half
        if excess(-hi, margin) > 0:
            return WORSE
        if excess(lo, margin) > 0:
            return BETTER
        return EQUIVALENT if excess(max(-lo, hi), margin) <= 0 else INCONCLUSIVE


@lru_cache(maxsize=256)
def quantile(freedom: float) -> float:
    """Return the quantile of Student's t that leaves out LEVEL."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - LEVEL))
