"""Intervals of means: Student's t for small samples, the bootstrap for those that are large enough for it.

The percentile interval is too short by what the normal quantile is below Student's and by the bootstrap's variance
being (n − 1)/n of the sample's: at n = 10 it covers 90% instead of 95%, and BCa no more (measured:
docs/results/statistics.md). Hesterberg, "What teachers should know about the bootstrap: resampling in the undergraduate
statistics curriculum", The American Statistician 69 (2015), section 5.3, expands it: percentiles at Φ(−√(n/(n−1)) t)
instead of 2.5%. On normal values that is Student's interval again, on others it follows their skew.
"""

from __future__ import annotations

import math

import numpy as np

from orchestrator.statistics.means import TAIL, Array, Interval, Moments, student

FEWEST = 10
"""With fewer values a bootstrap interval is too short: with 3 the percentile interval covers 76%."""

RESAMPLES = 1_999

_SEED = 0
"""The same values give the same interval."""


def mean_interval(values: Array) -> Interval:
    """The mean of each row, NaN left out: by Student's t below FEWEST values, by the bootstrap from there on."""
    small, large = student(Moments.of(values)), bootstrap_mean(values)
    resampled = ~np.isnan(large.lo)
    ends = {end: np.where(resampled, getattr(large, end), getattr(small, end)) for end in ("lo", "hi")}
    return Interval(point=small.point, **ends)


def bootstrap_mean(values: Array, generator: np.random.Generator | None = None) -> Interval:
    """The mean of each row with its expanded percentile interval; NaN is missing, rows below FEWEST have no interval.

    All rows of a size share their resamples: each interval is right by itself, and a matrix product makes them all.
    """
    generator = generator or np.random.default_rng(_SEED)
    n = (~np.isnan(values)).sum(axis=1)
    point, lo, hi = (np.full(len(values), np.nan) for _ in range(3))
    for size in np.unique(n[n >= FEWEST]).tolist():
        rows = np.flatnonzero(n == size)
        sample = values[rows][~np.isnan(values[rows])].reshape(len(rows), size)
        weights = generator.multinomial(size, np.full(size, 1 / size), size=RESAMPLES) / size
        point[rows] = sample.mean(axis=1)
        tail = expanded_tail(size)
        lo[rows], hi[rows] = np.quantile(sample @ weights.T, [tail, 1 - tail], axis=1)
    return Interval(point=point, lo=lo, hi=hi)


def expanded_tail(n: int) -> float:
    """The share of resamples to leave out at each end."""
    from scipy.special import ndtr, stdtrit  # takes longer to import than most callers have to wait for

    return float(ndtr(-math.sqrt(n / (n - 1)) * stdtrit(n - 1, TAIL)))
