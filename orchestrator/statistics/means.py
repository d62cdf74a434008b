"""Points and 95% intervals of means, differences and ratios. Pure: arrays in, arrays out.

Samples lie along the last axis and NaN is a missing value. Where fewer than two values are left there is no interval:
its ends are NaN.

Sources: Student, "The probable error of a mean", Biometrika 6 (1908), for one sample and for paired ones; Welch, "The
generalization of Student's problem when several different population variances are involved", Biometrika 34 (1947),
with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946), for two samples. Times and rates are compared by
their logarithms, because ratios of them are what is asked: Fleming and Wallace, "How not to lie with statistics: the
correct way to summarize benchmark results", CACM 29 (1986), for the geometric mean; Keene, "The log transformation is
special", Statistics in Medicine 14 (1995), for the interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

TAIL = 0.975
"""Of a 95% interval: 2.5% are left out at either end."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the ends of its 95% interval, arrays of one shape."""

    point: Array
    lo: Array
    hi: Array

    def map(self, increasing: Callable[[Array], Array]) -> Interval:
        """The interval of an increasing function of the quantity."""
        return Interval(point=increasing(self.point), lo=increasing(self.lo), hi=increasing(self.hi))


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Size, mean and variance (over n − 1) of samples, arrays of one shape."""

    n: Array
    mean: Array
    variance: Array

    @staticmethod
    def of(values: npt.ArrayLike) -> Moments:
        """The moments of samples along the last axis, NaN left out."""
        sample = np.asarray(values, dtype=np.float64)
        present = ~np.isnan(sample)
        n = np.asarray(present.sum(axis=-1), dtype=np.float64)
        mean = _divide(np.where(present, sample, 0.0).sum(axis=-1), n)
        deviation = np.where(present, sample - mean[..., None], 0.0)
        return Moments(n=n, mean=mean, variance=_divide((deviation**2).sum(axis=-1), n - 1))


def student(sample: Moments) -> Interval:
    """The mean: x̄ ± t(n − 1)·s/√n. Assumes independent normal values."""
    return _around(sample.mean, _divide(sample.variance, sample.n), sample.n - 1)


def welch(one: Moments, other: Moments) -> Interval:
    """The difference of the means of independent samples, whose variances may differ."""
    first, second = _divide(one.variance, one.n), _divide(other.variance, other.n)
    total = first + second
    freedom = _divide(total**2, _divide(first**2, one.n - 1) + _divide(second**2, other.n - 1))
    # Satterthwaite's formula is 0/0 where neither sample varies; any freedom gives the interval of width 0 there.
    freedom = np.where(total == 0, one.n + other.n - 2, freedom)
    return _around(one.mean - other.mean, total, freedom)


def logs(values: npt.ArrayLike) -> Array:
    """Natural logarithms; NaN for what is not above 0, which no time or rate is."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.log(np.where(numbers > 0, numbers, np.nan))


def mean(values: npt.ArrayLike) -> Interval:
    """The arithmetic mean, by Student's t."""
    return student(Moments.of(values))


def difference(one: npt.ArrayLike, other: npt.ArrayLike, *, paired: bool) -> Interval:
    """mean(one) − mean(other): of the pairs' differences if the values stand in pairs, else by Welch."""
    if paired:
        return mean(np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64))
    return welch(Moments.of(one), Moments.of(other))


def ratio(one: npt.ArrayLike, other: npt.ArrayLike, *, paired: bool) -> Interval:
    """The ratio of the geometric means of times or rates, from the difference of their logarithms."""
    return difference(logs(one), logs(other), paired=paired).map(np.exp)


def _around(point: Array, squared_error: Array, freedom: Array) -> Interval:
    from scipy.special import stdtrit  # takes longer to import than most callers have to wait for

    t = stdtrit(np.where(freedom > 0, freedom, np.nan), TAIL)
    half = t * np.sqrt(squared_error)
    return Interval(point=point, lo=point - half, hi=point + half)


def _divide(numerator: Any, denominator: Any) -> Array:
    """Elementwise, NaN for a denominator that is not above 0."""
    above = np.where(np.asarray(denominator) > 0, denominator, np.nan)
    return np.asarray(numerator / above, dtype=np.float64)
