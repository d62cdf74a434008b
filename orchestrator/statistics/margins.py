"""The losses that `report.margin` allows in exchange for speed, and the uses of its multiples, in rising order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from orchestrator.statistics.intervals import student_quantile

Losses = TypeVar("Losses", float, npt.NDArray[np.float64])

ROUNDING = 1e-9
"""Equal figures may come out apart by less: a loss of 1.0 - 0.99 is within a margin of 0.01."""


def excess(loss: Losses, margin: float) -> Losses:
    """Return by how much each loss exceeds the margin: losses within it have at most 0, unknown ones NaN."""
    return loss - (margin + ROUNDING)


EXPECTED = 0.5
"""The loss that is expected of a cell before any measurement: most cells that are tried keep the margin."""

SHORT = 2
"""A cell whose chance is unknown, with one seed, is out if it is this much below the baseline, and is not timed."""

FAR_BEHIND = 3
"""Chance explains no such gap: a seed that far behind has collapsed, and such a training is stopped early."""

BAR = 3.0
"""A bar of the metric in a table ends this far from the baseline."""

PLOTTED = 4
"""A plot of the metric shows cells to this far below the baseline, so that the margin is well in sight."""

IMPLAUSIBLE = 10
"""No batch or rate costs so much: a baseline that far behind is none, and seeds that far apart are doubtful."""

EQUIVALENT, WORSE, BETTER, INCONCLUSIVE = "equivalent", "worse", "better", "inconclusive"

LEVEL = 0.05  # the level of each one-sided test


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean difference with its standard error, for a test of whether it is within a margin, beyond it, or neither.

    Two one-sided tests: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach for
    assessing the equivalence of average bioavailability", Journal of Pharmacokinetics and Biopharmaceutics 15 (1987). A
    difference is *equivalent* if its 90% interval is within ±margin, *worse* if all of it is below −margin, *better* if
    all of it is above the margin, else *inconclusive*. Each false claim has a probability of at most 5%, for each
    comparison alone. Assumes independent normal differences.
    """

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
    return float(student_quantile(freedom, 1 - LEVEL))
