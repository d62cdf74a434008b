"""Tests whether a difference is within a margin, beyond it, or neither: numbers in, verdicts out.

Two one-sided tests: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach for assessing
the equivalence of average bioavailability", Journal of Pharmacokinetics and Biopharmaceutics 15 (1987). A difference is
*equivalent* if its 90% interval is inside ±margin, *worse* if all of it is below −margin, *better* if all of it is
above the margin, else *inconclusive*. Each false claim has a probability of at most 5%, for each comparison alone.
Assumes independent normal differences. The power is exact: given the sample's standard deviation, the mean is normal;
the standard deviation is integrated out (Phillips, "Power of the two one-sided tests procedure in bioequivalence", same
journal 18, 1990).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orchestrator.statistics.intervals import Array

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
        if hi < -margin or lo > margin:
            return WORSE if hi < -margin else BETTER
        return EQUIVALENT if -margin < lo and hi < margin else INCONCLUSIVE


def power(margin: float, deviation: float, n: int, *, true: float = 0.0) -> float:
    """Return the probability that n pairs, whose differences have this deviation, show equivalence."""
    if n < 2:
        return 0.0
    if deviation == 0:
        return float(abs(true) < margin)
    from scipy.special import ndtr

    scale, weights = scales(n - 1)
    error = deviation / math.sqrt(n)
    room = (margin - quantile(n - 1) * error * scale) / error
    chance = ndtr(room - true / error) - ndtr(-room - true / error)
    return float(weights @ np.where(room > 0, chance, 0.0))


@lru_cache(maxsize=256)
def scales(freedom: int) -> tuple[Array, Array]:
    """Return points and weights to average over s/σ = √(χ²/freedom): quantiles in the middle of equal shares."""
    from scipy.special import chdtri

    shares = (np.arange(400) + 0.5) / 400
    return np.sqrt(chdtri(freedom, 1 - shares) / freedom), np.full(400, 1 / 400)


@lru_cache(maxsize=256)
def quantile(freedom: float) -> float:
    """Return the quantile of Student's t that leaves out LEVEL."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - LEVEL))
