"""The median of censored times, some of which are only known to be longer than the time waited: arrays in, values out.

The median of log-normal times by maximum likelihood (Tobin, "Estimation of relationships for limited dependent
variables", Econometrica 26, 1958; Schmee and Hahn, "A simple method for regression analysis with censored data",
Technometrics 21, 1979). Its 95% interval holds the medians with a small profile likelihood ratio. For complete samples
that ratio is a function of Student's t, n·log(1 + t²/(n − 1)). Therefore the bound uses t with one degree of freedom
less than the number of reached times: complete samples get Student's interval, censored samples a wider one. A
distribution-free interval of the median (Brookmeyer and Crowley, Biometrics 38, 1982) has no upper end with fewer than
six times, which is why this module assumes a shape.
"""

from __future__ import annotations

import math

import numpy as np

from orchestrator.statistics.intervals import TAIL, Array, Interval, Moments, logs, student

FEWEST_REACHED = 2  # fewer times say nothing about their variance


def median_time(reached: Array, waited: Array) -> Interval:
    """Return the median of times > 0: those `reached`, and those longer than the time `waited`. NaN is left out.

    The point is the maximum-likelihood estimate; NaN if no time was reached. No interval with fewer than FEWEST_REACHED
    times; the upper end is infinite if the data have no bound.
    """
    seen, censored = _present(logs(reached)), _present(logs(waited))
    if not len(seen):
        return _interval(math.nan, math.nan, math.nan)
    if not len(censored):
        return student(Moments.of(seen)).map(np.exp)
    if len(seen) < FEWEST_REACHED or np.ptp(seen) == 0:
        return _interval(math.nan, math.nan, math.nan)
    return _by_likelihood(seen, censored)


def _by_likelihood(seen: Array, censored: Array) -> Interval:
    from scipy.optimize import brentq, minimize_scalar
    from scipy.special import stdtrit

    n, spread = len(seen) + len(censored), float(np.ptp(seen))
    span = (float(seen.min()) - 60 * spread, max(float(seen.max()), float(censored.max())) + 60 * spread)

    def deviance(center: float) -> float:
        """Return −2 log likelihood at this center, at its best deviation."""
        best = minimize_scalar(
            lambda log_scale: _deviance(seen, censored, center, math.exp(log_scale)),
            bounds=(math.log(spread) - 5, math.log(spread) + 6),
            method="bounded",
            options={"xatol": 1e-4},
        )
        return float(best.fun)

    top = minimize_scalar(deviance, bounds=(float(seen.min()), span[1]), method="bounded", options={"xatol": 1e-4})
    bound = top.fun + n * math.log1p(float(stdtrit(len(seen) - 1, TAIL)) ** 2 / (n - 1))

    def end(outer: float) -> float:
        if deviance(outer) < bound:
            return math.copysign(math.inf, outer - top.x)
        return float(brentq(lambda center: deviance(center) - bound, top.x, outer, xtol=1e-4))

    return _interval(math.exp(top.x), math.exp(end(span[0])), math.exp(min(end(span[1]), 700)))


def _deviance(seen: Array, censored: Array, center: float, scale: float) -> float:
    from scipy.special import log_ndtr

    squares = (((seen - center) / scale) ** 2).sum() + 2 * len(seen) * math.log(scale)
    return float(squares - 2 * log_ndtr((center - censored) / scale).sum())


def _present(values: Array) -> Array:
    return values[~np.isnan(values)]


def _interval(point: float, lo: float, hi: float) -> Interval:
    return Interval(point=np.asarray(point), lo=np.asarray(lo), hi=np.asarray(math.inf if hi > 1e300 else hi))
