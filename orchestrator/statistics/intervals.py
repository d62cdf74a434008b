"""Means, differences and ratios with 95% intervals: arrays in, arrays out.

Samples are along the last axis; NaN is a missing value. With fewer than two values the ends of an interval are NaN.

Sources: Student, "The probable error of a mean", Biometrika 6 (1908), for one sample and for paired ones; Welch, "The
generalization of Student's problem when several different population variances are involved", Biometrika 34 (1947),
with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946), for two samples. Times and rates are compared by
their logarithms, because ratios of them matter: Fleming and Wallace, "How not to lie with statistics: the correct way
to summarize benchmark results", CACM 29 (1986), for the geometric mean; Keene, "The log transformation is special",
Statistics in Medicine 14 (1995), for the interval.

Intervals of means are Student's t for small samples and bootstrapped for larger ones. The percentile interval is too
short, because the normal quantile is below Student's and the bootstrap's variance is (n − 1)/n of the sample's: at n =
10 it covers 90% instead of 95%, and so does BCa (measured: docs/results/statistics.md). Hesterberg, "What teachers
should know about the bootstrap: resampling in the undergraduate statistics curriculum", The American Statistician 69
(2015), section 5.3, expands it: percentiles at Φ(−√(n/(n−1)) t) instead of 2.5%. For normal values that is Student's
interval; for other values it follows their skew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

UPPER_95, UPPER_90 = 0.975, 0.95
"""Quantiles of the upper end of a 95% interval, which leaves out 2.5% at either end, and of a 90% interval."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the ends of its interval, of 95% unless said otherwise, arrays of one shape."""

    point: Array
    lo: Array
    hi: Array

    def map(self, increasing: Callable[[Array], Array]) -> Interval:
        """Return the interval of an increasing function of the quantity."""
        # The end of a very wide interval may be infinite.
        with np.errstate(over="ignore"):
            return Interval(point=increasing(self.point), lo=increasing(self.lo), hi=increasing(self.hi))

    def negated(self) -> Interval:
        """Return the interval of the quantity with the other sign."""
        return Interval(point=-self.point, lo=-self.hi, hi=-self.lo)


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Size, mean and variance (over n − 1) of samples, arrays of one shape."""

    n: Array
    mean: Array
    variance: Array

    @staticmethod
    def of(values: npt.ArrayLike) -> Moments:
        """Compute the moments of samples along the last axis, without NaN."""
        sample = np.asarray(values, dtype=np.float64)
        present = ~np.isnan(sample)
        n = np.asarray(present.sum(axis=-1), dtype=np.float64)
        mean = _divide(np.where(present, sample, 0.0).sum(axis=-1), n)
        deviation = np.where(present, sample - mean[..., None], 0.0)
        return Moments(n=n, mean=mean, variance=_divide((deviation**2).sum(axis=-1), n - 1))


def student_quantile(freedom: npt.ArrayLike, upper: float = UPPER_95) -> Array:
    """Return the quantile `upper` of Student's t; NaN without degrees of freedom."""
    from scipy.special import stdtrit  # slow to import

    degrees = np.asarray(freedom, dtype=np.float64)
    return np.asarray(stdtrit(np.where(degrees > 0, degrees, np.nan), upper))


def student(sample: Moments, upper: float = UPPER_95) -> Interval:
    """Return the mean x̄ ± t(n − 1)·s/√n. Assumes independent normal values. `upper`: the quantile of the upper end."""
    return _around(sample.mean, _divide(sample.variance, sample.n), sample.n - 1, upper)


def welch(one: Moments, other: Moments) -> Interval:
    """Return the difference of the means of independent samples, whose variances may differ."""
    return _around(one.mean - other.mean, *welch_error(one, other))


def welch_error(one: Moments, other: Moments) -> tuple[Array, Array]:
    """Return the squared error of the difference and its degrees of freedom."""
    first, second = _divide(one.variance, one.n), _divide(other.variance, other.n)
    total = first + second
    freedom = _divide(total**2, _divide(first**2, one.n - 1) + _divide(second**2, other.n - 1))
    # Satterthwaite's formula is 0/0 if neither sample varies; then any freedom gives an interval of width 0.
    return total, np.where(total == 0, one.n + other.n - 2, freedom)


FEWEST_SHARED = 4  # with fewer rows, what they share cannot be told from a change of single rows


def apart_from_shared(one: Moments, other: Moments) -> tuple[Interval, Interval]:
    """Return the difference of means that all rows share, and how far each row is from it; NaN below FEWEST_SHARED.

    What rows share is their median. Rows also differ by chance from session to session: the interval of a row has its
    own error, and the spread between rows beyond such errors, from their median absolute deviation, so that the few
    rows that did change widen it little (Huber, "Robust Statistics", Wiley 1981, chapter 5).
    """
    change, (squared, freedom) = one.mean - other.mean, welch_error(one, other)
    known = ~np.isnan(change + squared)
    rows = int(known.sum())
    if rows < FEWEST_SHARED:
        nothing = np.full_like(change, np.nan)
        return Interval(point=np.asarray(np.nan), lo=np.asarray(np.nan), hi=np.asarray(np.nan)), Interval(
            point=nothing, lo=nothing, hi=nothing
        )
    centre = np.asarray(np.median(change[known]))
    spread = (1.4826 * rows / (rows - 0.8) * float(np.median(np.abs(change[known] - centre)))) ** 2
    between = max(0.0, spread - float(np.median(squared[known])))
    of_centre = math.pi / 2 * spread / rows
    t = float(student_quantile(_EFFICIENCY * (rows - 1)))
    own = student_quantile(freedom) ** 2 * squared
    half, of_all = np.sqrt(own + t**2 * (between + of_centre)), t * math.sqrt(of_centre)
    apart = change - centre
    return Interval(point=centre, lo=centre - of_all, hi=centre + of_all), Interval(
        point=apart, lo=apart - half, hi=apart + half
    )


_EFFICIENCY = 0.5
"""The median absolute deviation of n values is about as sure as the standard deviation of this part of them."""


def logs(values: npt.ArrayLike) -> Array:
    """Return natural logarithms; NaN for values that are infinite or not above 0."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.log(np.where((numbers > 0) & np.isfinite(numbers), numbers, np.nan))


def mean(values: npt.ArrayLike) -> Interval:
    """Return the arithmetic mean with Student's interval."""
    return student(Moments.of(values))


def difference(one: npt.ArrayLike, other: npt.ArrayLike, *, paired: bool) -> Interval:
    """Return mean(one) − mean(other): from the differences of pairs if the values are paired, else by Welch."""
    if paired:
        return mean(np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64))
    return welch(Moments.of(one), Moments.of(other))


def ratio(one: npt.ArrayLike, other: npt.ArrayLike, *, paired: bool) -> Interval:
    """Return the ratio of the geometric means of times or rates, from the difference of their logarithms."""
    return difference(logs(one), logs(other), paired=paired).map(np.exp)


def _around(point: Array, squared_error: Array, freedom: Array, upper: float = UPPER_95) -> Interval:
    half = student_quantile(freedom, upper) * np.sqrt(squared_error)
    return Interval(point=point, lo=point - half, hi=point + half)


def _divide(numerator: Any, denominator: Any) -> Array:
    """Divide elementwise; NaN for a denominator that is not above 0."""
    above = np.where(np.asarray(denominator) > 0, denominator, np.nan)
    return np.asarray(numerator / above, dtype=np.float64)


FEWEST = 10  # with fewer values a bootstrap interval is too short: with 3 values the percentile interval covers 76%

RESAMPLES = 1_999

_SEED = 0  # seed of the resamples, so that the same values give the same interval


def mean_interval(values: Array) -> Interval:
    """Return the mean of each row without NaN: Student's t below FEWEST values, bootstrapped from FEWEST on."""
    small, large = student(Moments.of(values)), bootstrap_mean(values)
    resampled = ~np.isnan(large.lo)
    ends = {end: np.where(resampled, getattr(large, end), getattr(small, end)) for end in ("lo", "hi")}
    return Interval(point=small.point, **ends)


def proportion_interval(values: Array, samples: Array) -> Interval:
    """Return the mean proportion of each row: `mean_interval`, widened to what the number of samples allows to know.

    Equal values, or values at 0 or 1, are no sign of certainty if each is a share of few samples. The interval is
    therefore at least Jeffreys' for all samples of the row together (Brown, Cai and DasGupta, "Interval estimation for
    a binomial proportion", Statistical Science 16, 2001), and within [0, 1]. `samples` has the number for each value;
    rows with an unknown number are not widened, and rows with one value have no interval. A mean outside [0, 1] is no
    proportion, and its interval stays as it is.
    """
    means, known = mean_interval(values), ~np.isnan(values)
    total = np.where(known, samples, 0.0).sum(axis=1)
    hits = np.clip(means.point, 0.0, 1.0) * total
    lo, hi = jeffreys(hits, total)
    # The ends at no hit and at nothing but hits are exact.
    lo = np.where(hits < 0.5, 0.0, lo)
    hi = np.where(total - hits < 0.5, 1.0, hi)
    is_share = (means.point >= 0) & (means.point <= 1) & ~np.isnan(means.lo)
    return Interval(
        point=means.point,
        lo=np.where(is_share, np.clip(means.lo, 0.0, np.fmin(lo, 1.0)), means.lo),
        hi=np.where(is_share, np.clip(means.hi, np.fmax(hi, 0.0), 1.0), means.hi),
    )


def jeffreys(hits: npt.ArrayLike, n: npt.ArrayLike) -> tuple[Array, Array]:
    """Return the ends of Jeffreys' 95% interval of a share, after `hits` of `n`."""
    from scipy.special import betaincinv  # slow to import

    hits, n = np.asarray(hits, dtype=np.float64), np.asarray(n, dtype=np.float64)
    lo, hi = (np.asarray(betaincinv(hits + 0.5, n - hits + 0.5, tail)) for tail in (1 - UPPER_95, UPPER_95))
    return lo, hi


def least_error(difference: Array, samples: Array) -> Array:
    """Return the standard error that a difference of two shares of the same samples has at least; 0 if unknown.

    Models whose shares differ by k of n samples disagree on k or more. Equal differences of several seeds are therefore
    no sign of certainty (Agresti and Min, "Simple improved confidence intervals for comparing matched proportions",
    Statistics in Medicine 24, 2005: a half is added to each count). `samples` has those of all seeds. A difference of
    exactly 0 has no error: it is that of the same training under two names.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        squared = (np.abs(difference) + 1 / samples - difference**2) / samples
    return np.asarray(np.where((squared > 0) & (difference != 0), np.sqrt(np.maximum(squared, 0.0)), 0.0))


def at_least(interval: Interval, error: Array) -> Interval:
    """Return the interval, widened to the normal one with this standard error."""
    from scipy.special import ndtri  # slow to import

    half = float(ndtri(UPPER_95)) * error
    point = interval.point
    return Interval(point=point, lo=np.minimum(interval.lo, point - half), hi=np.maximum(interval.hi, point + half))


def bootstrap_mean(values: Array) -> Interval:
    """Return the mean of each row with its expanded percentile interval; rows below FEWEST have no interval.

    All rows of a size share their resamples, so that one matrix product gives all means; each interval is valid alone.
    """
    generator = np.random.default_rng(_SEED)
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
    """Return the share of resamples to leave out at each end."""
    from scipy.special import ndtr  # slow to import

    return float(ndtr(-math.sqrt(n / (n - 1)) * student_quantile(n - 1)))
