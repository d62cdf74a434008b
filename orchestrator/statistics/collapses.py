"""Finds seeds whose accuracy collapsed, and estimates how often that happens: arrays in, arrays out.

A training run may diverge and still end normally, at chance accuracy. The mean and the variance of its cell then
describe neither the runs that succeed nor the one that does not. Collapsed seeds are found by a robust scale, from the
first quartile of the differences between seeds of a cell, which large differences do not change (Rousseeuw and Croux,
"Alternatives to the median absolute deviation", Journal of the American Statistical Association 88, 1993: Qₙ). The
share of seeds that collapse has Jeffreys' prior (Brown, Cai and DasGupta, "Interval estimation for a binomial
proportion", Statistical Science 16, 2001).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.statistics import margins
from orchestrator.statistics.intervals import Array, student_quantile
from orchestrator.statistics.pooling import Likeness

_FALSE_ALARMS = 0.002  # probability that any seed of a sweep is found, if none collapsed and accuracies are normal

_QUARTILE = 0.4506
"""A quarter of the differences between two normal values are smaller than this multiple of their standard deviation."""

_DOF_SHARE = 0.5  # degrees of freedom of the scale, as a part of those of a standard deviation

_COMMON_DOF = 4.0  # degrees of freedom of the common scale of all cells, beside those of a cell's own

_FEWEST_CELLS = 6  # with fewer cells, their quartile is no robust estimate of what a seed does to all cells

_UPPER_QUANTILE = 0.8  # the quantile of a cell's values that collapsed ones are below: four of five seeds may collapse

_PRIOR_DOF = 3.0  # degrees of freedom of the guess that seeds vary by the margin, which two or three seeds need


FEWEST_LOSSES = 3
"""The fewest seeds by which a loss is judged. An accuracy collapses to chance; a loss has no such end, and early in a
training the losses of two seeds differ by many margins."""


def collapsed(values: Array, margin: float, fewest: int = 2) -> npt.NDArray[np.bool_]:
    """Return which values are far below the other seeds of their cell; rows are cells, columns seeds, NaN is missing.

    A drop is far if it is several times the margin, and larger than the spread of most seeds explains. Values are
    compared with an upper quantile of their cell, so that also most seeds of a cell may collapse. What a seed does to
    three quarters of the cells is no collapse. Cells with fewer than `fewest` seeds, at least two, are not judged.
    """
    known = ~np.isnan(values)
    several = known.sum(axis=1) >= fewest
    is_collapsed = np.zeros(values.shape, dtype=bool)
    if not several.any():
        return is_collapsed
    judged = np.ix_(several, known[several].any(axis=0))
    drops = _below(values[judged])
    if len(drops) >= _FEWEST_CELLS:
        # The first quartile, because a third of the seeds of most cells may collapse.
        drops = _below(-(drops - np.nanquantile(drops, 0.25, axis=0)))
    count = int(known[several].sum())
    freedom = _DOF_SHARE * (count - several.sum())
    scale = np.sqrt((freedom * _scales(drops) ** 2 + _PRIOR_DOF * margin**2) / (freedom + _PRIOR_DOF))
    by_chance = student_quantile(freedom + _PRIOR_DOF, 1 - _FALSE_ALARMS / count) * scale
    limit = np.maximum(margins.FAR_BEHIND * margin, by_chance)
    is_collapsed[judged] = np.nan_to_num(drops) > limit[:, None]
    return is_collapsed


def _below(values: Array) -> Array:
    """Return how far each value is below its row's upper quantile, which for up to five seeds is the maximum."""
    return np.asarray(np.nanquantile(values, _UPPER_QUANTILE, axis=1, keepdims=True, method="higher") - values)


def _scales(values: Array) -> Array:
    """Return a robust standard deviation for each row: that of all rows together, or a larger one if the row has it."""
    one, other = np.triu_indices(values.shape[1], 1)
    gaps = np.abs(values[:, one] - values[:, other])
    pooled = np.nanquantile(gaps, 0.25, method="lower")
    n = (~np.isnan(values)).sum(axis=1)
    several = n >= 3
    own = np.full(len(values), pooled)
    own[several] = np.nanquantile(gaps[several], 0.25, axis=1, method="lower")
    # Few seeds say little about their own spread, least of all if some of them collapsed.
    freedom = _DOF_SHARE * np.maximum(n - 1, 0)
    squares = (freedom * np.maximum(own, pooled) ** 2 + _COMMON_DOF * pooled**2) / (freedom + _COMMON_DOF)
    return np.asarray(np.sqrt(squares) / _QUARTILE)


def share_draws(hits: Array, n: Array, generator: np.random.Generator, draws: int) -> Array:
    """Return draws of the share of seeds that collapse, shape (draws, *hits.shape), after `hits` of `n` did."""
    return np.asarray(generator.beta(hits + 0.5, n - hits + 0.5, (draws, *hits.shape)))


_STEPS = 30  # steps of the iteration for the risk of a collapse

_NEARLY = 0.7  # a cell that loses this part of the drop of collapsed seeds in all of its seeds counts as collapsed, too

_SAFE_CELLS = 0.2
"""Before any measurement, a cell's risk is that of its similar cells and of this number of cells without risk."""


@dataclass(frozen=True, kw_only=True)
class Collapses:
    """The collapsed seeds of each cell."""

    hits: Array
    n: Array  # all seeds with an accuracy, and those that ended without one
    drop: Array
    """By how much a collapsed seed is below the others, on average; 0 without one, inf if one has no accuracy."""
    below: Array  # how much the other seeds are below the baseline's, on average; NaN is unknown
    likeness: Likeness | None = None

    @property
    def mean(self) -> Array:
        """How much a cell's own mean is below that of the other seeds."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(self.hits > 0, self.drop * self.hits / np.maximum(self.n, 1), 0.0))

    def draws(self, generator: np.random.Generator, draws: int) -> Array:
        """Return draws of what a cell's true mean loses, shape (draws, cells): a share of seeds times the drop.

        One cell's collapse may be chance. Once seeds of several cells have collapsed, cells like them are at risk.
        """
        has_hits, lost = self.hits > 0, np.zeros((draws, len(self.n)))
        lost[:, has_hits] = self.drop[has_hits] * share_draws(self.hits[has_hits], self.n[has_hits], generator, draws)
        has_drop = has_hits & np.isfinite(self.drop)
        if self.likeness is None or has_drop.sum() < 2:
            return lost
        drop = np.median(self.drop[has_drop])
        # A cell that is below the baseline by almost a drop has probably collapsed in all of its seeds.
        hits = np.where(~has_hits & (self.below > _NEARLY * drop), self.n, self.hits)
        risk = _risk(hits, self.n, self.likeness.weights())
        others = hits == 0
        share = share_draws(hits.sum(), risk @ self.n, generator, draws)
        is_at_risk = generator.random((draws, int(others.sum()))) < risk[others]
        lost[:, others] = drop * share[:, None] * is_at_risk
        return lost


def _risk(hits: Array, n: Array, alike: Array) -> Array:
    """Return the probability that seeds of each cell collapse, 1 where some did (expectation maximization).

    A cell is at risk as often as the cells like it are, and all cells at risk have the same share of collapsing seeds.
    """
    risk = (hits > 0).astype(np.float64)
    for _ in range(_STEPS):
        share = hits.sum() / (risk @ n)
        before = (alike @ risk) / (alike.sum(axis=1) + _SAFE_CELLS)
        # The probability that a cell is at risk, and yet none of its seeds collapsed.
        unseen = before * (1 - share) ** n
        risk = np.where(hits > 0, 1.0, unseen / (unseen + 1 - before))
    return np.asarray(risk)
