"""How many seeds a question needs: to tell which of two values is larger, and to judge a claim."""

from __future__ import annotations

import math

from orchestrator.statistics.intervals import Array, student_quantile

MOST_TO_SETTLE = 100  # the largest number of seeds that a table names

_POWER_QUANTILE = 0.8416  # of the normal distribution at 0.8, the power that further seeds should reach

_TOO_UNLIKELY = 0.2  # if the most seeds tell a difference with at most this probability, no number of seeds is proposed


def seeds_to_tell(gap: float, variance: float, error: float, probability: float, most: int) -> int | None:
    """Return the seeds that probably tell the sign of a difference with this probability; None if `most` do not.

    n seeds tell a true difference d if t(probability, n − 1)² · variance / n ≤ d². Here d is not known: it is normal
    with mean `gap` and standard deviation `error`, which is what few seeds say about it. `variance` is that of the
    difference between values of one seed. Returns the median need, at most `most`.
    """
    from scipy.special import ndtr  # slow to import

    chance = 0.0
    for n in range(2, most + 1):
        told = float(student_quantile(n - 1, probability)) * math.sqrt(variance / n)
        known = float(abs(gap) >= told)
        chance = known if error == 0 else 1 - float(ndtr((told - gap) / error) - ndtr((-told - gap) / error))
        if chance >= 0.5:
            return n
    return most if chance > _TOO_UNLIKELY else None


def seeds_to_exclude_0(values: Array) -> int | None:
    """Return the seeds at which the interval of a mean excludes 0, if mean and deviation stay the same.

    The result is above the number of `values`; None above MOST_TO_SETTLE.
    """
    gap, deviation = abs(float(values.mean())), float(values.std(ddof=1))
    for n in range(len(values) + 1, MOST_TO_SETTLE + 1):
        if (float(student_quantile(n - 1)) + _POWER_QUANTILE) * deviation / math.sqrt(n) <= gap:
            return n
    return None
