"""What is known of the cells to choose from, and estimates of their true values.

A seed's common effect on all cells is removed first, and the remaining variances are shrunk towards what the
cells have in common (`shrinkage`); shrinking variances of differences would count the baseline's error as often
as there are cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.statistics.means import TAIL, Array, Interval, Moments, logs
from orchestrator.statistics.pooling import Likeness, pooled_draws
from orchestrator.statistics.shrinkage import shrunken

DRAWS = 20_000
_MOST_DRAWN = 2_000_000
"""Draws for all cells together: above 100 cells each gets fewer, still 2,000 at 1,000 cells."""

NORMAL = 1e9
"""Degrees of freedom above which t is treated as the normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What is known of the cells: rows are cells, columns are seeds, NaN is missing."""

    objective: Array
    """Above 0; smaller is better."""
    accuracy: Array
    """On the validation split; all NaN if not measured."""
    baseline: int | None
    """The row that accuracies are compared with."""
    margin: float
    likeness: Likeness | None = None
    """Similarity of the cells; None if each is treated on its own."""


@dataclass(frozen=True, kw_only=True)
class Means:
    """Estimates of each cell's true value; draws are `point + error · t(freedom)`, a NaN error is unknown."""

    point: Array
    n: Array
    error: Array
    freedom: Array

    def intervals(self) -> Interval:
        """95% intervals, one per cell."""
        from scipy.special import stdtrit

        half = stdtrit(np.minimum(self.freedom, NORMAL), TAIL) * self.error
        return Interval(point=self.point, lo=self.point - half, hi=self.point + half)

    def draws(self, generator: np.random.Generator, most: int = DRAWS) -> Array:
        """Shape (draws, cells)."""
        known = self.error > 0
        shape = (max(1_000, min(most, _MOST_DRAWN // max(1, len(known)))), len(known))
        freedom = np.where(known, np.minimum(self.freedom, NORMAL), NORMAL)
        return self.point + np.where(known, self.error, 0.0) * generator.standard_t(freedom, shape)


def log_objectives(objective: Array) -> Means:
    """Estimates of the logarithms of the cells' objectives."""
    values = logs(objective)
    return _means(Moments.of(values), _own_variances(values))


def accuracies(contest: Contest) -> Means:
    """Estimates of the cells' own accuracies, independent of the baseline's."""
    return _means(Moments.of(contest.accuracy), _own_variances(contest.accuracy))


def accuracy_differences(contest: Contest) -> Means:
    """Estimates of each cell's accuracy minus the baseline's, whose error enters all of them."""
    accuracy, base = contest.accuracy, contest.baseline
    if base is None or np.isnan(accuracy[base]).all():
        nothing = np.full(len(accuracy), np.nan)
        return Means(point=nothing, n=np.zeros(len(accuracy)), error=nothing, freedom=nothing)
    own = accuracies(contest)
    error = np.sqrt(own.error**2 + own.error[base] ** 2)
    differences = Moments.of(accuracy - accuracy[base])
    # Two rules may describe the same training, as all do at the reference batch: equal figures for every seed.
    twins = (differences.n >= 2) & (differences.mean == 0) & (differences.variance == 0)
    itself = twins | (np.arange(len(accuracy)) == base)
    return Means(
        point=own.point - own.point[base],
        n=np.minimum(own.n, own.n[base]),
        error=np.where(itself, 0.0, error),
        freedom=np.where(itself, np.inf, np.minimum(own.freedom, own.freedom[base])),
    )


def pooled_differences(contest: Contest, difference: Means, generator: np.random.Generator, draws: int) -> Array | None:
    """Draws, shape (draws, cells), pooled over similar cells; None if pooling is impossible, as with unknown errors."""
    compared = ~np.isnan(difference.point)
    if contest.likeness and contest.baseline is not None and not np.isnan(difference.error[compared]).any():
        own = accuracies(contest)
        alike = Likeness(batch=contest.likeness.batch[compared], recipe=contest.likeness.recipe[compared])
        freedom = float(np.median(own.freedom[compared])) if compared.any() else math.inf
        truths = pooled_draws(own.point[compared], own.error[compared], freedom, alike, generator, draws)
        if truths is not None:
            found = np.full((draws, len(compared)), np.nan)
            found[:, compared] = truths
            itself = compared & (difference.error == 0) & (difference.point == 0)
            return np.where(itself, 0.0, found - found[:, [contest.baseline]])
    return None


def _own_variances(values: Array) -> Array:
    """Variances between seeds, without a seed's common effect if all cells that have values share the same seeds.

    That effect is estimated by the median over the cells, which is robust to outliers; it absorbs about .43/C of a
    normal cell's own variance (1 − 2/C + π/2C). With two cells the median is the mean, and absorbs half.
    """
    known = ~np.isnan(values)
    measured, complete = known.any(axis=1), known.any(axis=0)
    cells = int(measured.sum())
    if cells < 2 or not (known[measured] == complete).all():
        return Moments.of(values).variance
    found = values[np.ix_(measured, complete)]
    deviations = found - found.mean(axis=1, keepdims=True)
    kept = 0.5 if cells == 2 else 1 - (2 - math.pi / 2) / cells
    variance = np.full(len(values), np.nan)
    variance[measured] = Moments.of(deviations - np.median(deviations, axis=0)).variance / kept
    return variance


def _means(moments: Moments, variance: Array) -> Means:
    pooled, freedom = shrunken(variance, moments.n - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(freedom > 0, np.sqrt(pooled / moments.n), np.nan)
    return Means(point=moments.mean, n=moments.n, error=error, freedom=freedom)
