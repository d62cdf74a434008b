"""Chooses the best cell by an objective among those that keep their accuracy, and estimates how certain that is.

Probabilities come from draws of each cell's true value (`cell_estimates.py`). "Best" means that no cell within the
margin is more than TIE better (Bechhofer, "A single-sample multiple decision procedure …", Annals of Mathematical
Statistics 25, 1954), so that cells that do the same work do not split the probability. Among the cells that may be the
best, one with the fewest device-hours is chosen, and of several the one with the best pooled accuracy. Rules that weigh
a cell's gain against the chance that it misses the margin did no better in simulated sweeps
(docs/results/statistics.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from orchestrator.decision.cell_estimates import (
    NORMAL,
    Means,
    Measurements,
    accuracies,
    log_objectives,
    pooled_differences,
    score_differences,
)
from orchestrator.decision.thresholds import NOTICED, SAFE, SHOWN_BETTER, SURE, SURE_OF_SELECTED, TIE
from orchestrator.statistics import margins
from orchestrator.statistics.intervals import Array, least_error

DRAWS = 20_000

LOSS_QUANTILE = 0.95
"""Quantile of the chosen cell's loss against the best one."""

BY_DRAWS = 0.01
"""Smaller differences between probabilities may be due to the draws alone."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choice among measured cells. Arrays have one entry per cell."""

    measurements: Measurements
    favourite: int | None
    """The cell that the rule chooses, recommended or not yet (`Contenders.chosen`); None if no cell qualifies."""
    safe: int | None = None
    """The same among the cells that are within the margin with probability SAFE; None if chance is unknown."""
    log_objective: Means
    score_difference: Means
    """Differences from the baseline, above 0 if a cell is more accurate; points are NaN if accuracy is not compared."""
    excess: Array
    """How far each loss is beyond the margin: at most 0 within it, NaN if accuracy is not compared."""
    pooled_difference: Array
    """Medians of the same, pooled over similar cells: a cell qualifies once the margin covers it."""
    p_within: Array
    p_best: Array
    keeps_accuracy: npt.NDArray[np.bool_]
    """Whether each is more likely than not within the margin; all are if none has an accuracy."""
    behind: float = math.nan
    """How far the favourite's objective is at most above the best one's, as a fraction of it, with probability
    LOSS_QUANTILE; the best is among the cells within the margin. NaN if one seed per cell gives no estimate."""
    safe_behind: float = math.nan
    """The same of the safe cell."""

    @property
    def most_accurate(self) -> int | None:
        """The cell with the best pooled metric; None if the metric is not compared."""
        return None if np.isnan(self.pooled_difference).all() else int(np.nanargmax(self.pooled_difference))

    @property
    def below_best(self) -> float:
        """How far the favourite's metric is probably below that of the most accurate cell; NaN if not compared."""
        if self.favourite is None or self.most_accurate is None:
            return math.nan
        return float(self.pooled_difference[self.most_accurate] - self.pooled_difference[self.favourite])

    @cached_property
    def has_uneven_seeds(self) -> bool:
        """True if some cells have more seeds than others."""
        # A seed whose timing was disturbed has run as well.
        has_run = ~np.isnan(self.measurements.objective) | ~np.isnan(self.measurements.accuracy)
        n = has_run.sum(axis=1)
        if self.measurements.left_out is not None:
            n = n[~self.measurements.left_out]
        return len(set(n[n > 0])) > 1

    @property
    def needed_probability(self) -> float:
        """The least probability that suffices for CLEAR."""
        return SURE_OF_SELECTED if self.has_uneven_seeds else SURE

    def is_sure(self, probability: float) -> bool:
        """Return whether a probability suffices for CLEAR; NaN does not."""
        return probability >= self.needed_probability

    @property
    def qualifies(self) -> npt.NDArray[np.bool_]:
        """Which cells may be chosen: those with an objective that keep their accuracy."""
        return self.keeps_accuracy & ~np.isnan(self.log_objective.point)

    @property
    def tied(self) -> npt.NDArray[np.bool_]:
        """Which of the cells that qualify are within TIE of their least objective."""
        return within_tie(self.log_objective.point, self.qualifies)

    def best_of(self, rows: npt.NDArray[np.bool_]) -> int | None:
        """Return the cell to use among these; None if none of them qualifies.

        Of the cells that may be as good as the first by the objective, one with the fewest hours is used, unless a tied
        one has a metric that is better by more than the margin.
        """
        rows = rows & self.qualifies
        if not rows.any():
            return None
        tied = within_tie(self.log_objective.point, rows)
        fastest = int(np.argmin(np.where(rows, self.log_objective.point, np.inf)))
        may_be_best = rows & (tied | (self.log_objective.minus(fastest).p_below(math.log1p(TIE)) > 1 - SAFE))
        choice = self._cheapest(may_be_best, tied)
        # More hours buy a better metric only if it matters, and chance does not explain it.
        while (better := tied & self.is_shown_better_than(choice)).any():
            choice = self._cheapest(better, tied)
        return choice

    def _cheapest(self, rows: npt.NDArray[np.bool_], tied: npt.NDArray[np.bool_]) -> int:
        """Return the row within TIE of the fewest hours; of several a tied, a SURE, the best by pooled accuracy."""
        cheapest = within_tie(self.measurements.log_cost, rows)
        is_dearer = rows & ~cheapest & cheapest.any()
        is_compared = not np.isnan(self.score_difference.point).all()
        is_unsure = is_compared & ~(self.p_best >= SURE)
        # Of similar cells, pooled estimates rank the truth better than each cell's own mean, and fit the probability.
        order = (self.log_objective.point, -self.pooled_difference, is_unsure, ~tied, is_dearer, ~rows)
        return int(np.lexsort(order)[0])  # the last key is the first to decide

    def is_shown_better_than(self, row: int) -> npt.NDArray[np.bool_]:
        """Return which cells beat this one's metric by more than the margin: with SHOWN_BETTER, for all tied cells."""
        difference = accuracies(self.measurements).minus(row)
        least = least_error(difference.point, self.measurements.samples * difference.n)
        p_worse = replace(difference, error=np.maximum(difference.error, least)).p_below(self.measurements.margin)
        # Each tied cell is a further chance of a false difference (Bonferroni).
        return np.asarray(p_worse <= (1 - SHOWN_BETTER) / max(1, int(self.tied.sum()) - 1))

    def needs_more_hours(self, row: int, other: int) -> bool:
        """Return whether a cell takes more device-hours than another one, by more than TIE; False if unknown."""
        return bool(self.measurements.log_cost[row] > self.measurements.log_cost[other] + math.log1p(TIE))

    def ties_with(self, row: int) -> npt.NDArray[np.bool_]:
        """Return which other cells qualify and are as likely as this one to be the best, or not separable from it.

        Two cells are separable if the 95% interval of the ratio of their objectives excludes 1. Few seeds give wide
        intervals, so that a cell that is less likely than NOTICED to be the best counts as separable, too.
        """
        ratio = self.log_objective.minus(row).intervals()
        is_inseparable = (ratio.lo <= 0) & (ratio.hi >= 0) & ~(self.p_best < NOTICED)
        as_likely = self.p_best >= self.p_best[row] - BY_DRAWS
        others = self.qualifies & (np.arange(len(as_likely)) != row)
        return np.asarray(others & (is_inseparable | as_likely))

    def p_costly(self, row: int, other: int) -> float:
        """Return the probability that cost grows by a larger factor from `other` to `row` than the objective shrinks.

        Hours are the time multiplied by a constant, so that the error of the ratio of times counts twice. NaN if hours
        or errors are unknown.
        """
        from scipy.special import stdtr

        growth = float(self.measurements.log_cost[row] - self.measurements.log_cost[other])
        shrinks = self.log_objective.minus(row)
        excess = growth - float(shrinks.point[other])
        error = 2 * float(shrinks.error[other])
        if math.isnan(excess) or math.isnan(error):
            return math.nan
        if error == 0:
            return float(excess > margins.ROUNDING)
        return float(stdtr(min(float(shrinks.freedom[other]), NORMAL), excess / error))


def choose(measurements: Measurements, generator: np.random.Generator | None = None, draws: int = DRAWS) -> Choice:
    """Choose a cell among those with P(accuracy within margin) of at least 50%, by `Choice.best_of`.

    A cell that is likely to miss the margin is not chosen, even if it is not shown to be worse; further seeds may admit
    it. Nor is a cell with a collapsed seed if the mean of all of its seeds misses the margin, nor one that misses it by
    collapses alone with a probability above 1 − SAFE; the collapsed seeds may be those of similar cells. The baseline
    counts by its other seeds. Probabilities are NaN if no cell has a second seed. With 20,000 `draws` a probability is
    accurate to ± 0.7%, with 2,000 to ± 2.2%.
    """
    # The same measurements give the same recommendation.
    generator = generator or np.random.default_rng(0)
    log_objective = log_objectives(measurements.objective, measurements.timing_group)
    accuracy, collapses = score_differences(measurements), measurements.collapses
    is_compared = ~np.isnan(accuracy.point)
    has_no_error = is_compared & np.isnan(accuracy.error)
    truths = _Truths.drawn(measurements, log_objective, accuracy, generator, draws)

    p_within = np.where(has_no_error | ~is_compared, np.nan, truths.within.mean(axis=0))
    has_no_chance = has_no_error | np.isnan(log_objective.point + log_objective.error)
    p_best = np.where(has_no_chance, np.nan, truths.best.mean(axis=0))

    # Which cells keep their accuracy. A loss by collapsed seeds alone excludes a cell that other draws would admit.
    measured = accuracy.point - collapses.mean
    excess = measurements.excess(-measured)
    is_likely_within = ~is_compared.any() | np.where(has_no_error, excess <= 0, p_within >= 0.5)
    loses_by_own_collapse = (collapses.hits > 0) & (excess > 0)
    survives_collapses = (measurements.excess(truths.by_collapse) <= 0).mean(axis=0) >= SAFE

    choice = Choice(
        measurements=measurements,
        favourite=None,
        log_objective=log_objective,
        score_difference=replace(accuracy, point=measured),
        excess=excess,
        pooled_difference=np.median(truths.difference, axis=0) if truths.is_pooled else measured,
        p_within=p_within,
        p_best=p_best,
        keeps_accuracy=is_likely_within & ~loses_by_own_collapse & survives_collapses,
    )
    favourite = choice.best_of(np.full(len(measured), True))
    if favourite is None:
        return replace(choice, p_best=np.full_like(p_best, np.nan))
    safe = None if np.isnan(p_within[favourite]) else choice.best_of(p_within >= SAFE)
    behind, safe_behind = (
        math.nan if row is None or np.isnan(p_best[row]) else truths.behind(row) for row in (favourite, safe)
    )
    return replace(choice, favourite=favourite, safe=safe, behind=behind, safe_behind=safe_behind)


@dataclass(frozen=True, kw_only=True)
class _Truths:
    """Draws of what may be true of the cells. Arrays have the shape (draws, cells)."""

    log_objective: Array
    difference: Array
    """Accuracy minus the baseline's, less what collapses cost."""
    by_collapse: Array
    """What collapses cost in accuracy."""
    is_pooled: bool
    """Whether similar cells inform a cell's difference."""
    within: npt.NDArray[np.bool_]
    """Which cells are within the margin; all are if no accuracy is compared."""

    @staticmethod
    def drawn(
        measurements: Measurements, objective: Means, accuracy: Means, generator: np.random.Generator, draws: int
    ) -> _Truths:
        """Draw from the estimates of the logarithms of the objectives and of the accuracies without collapses."""
        log_objective = objective.draws(generator, draws)
        draws = len(log_objective)  # fewer with many cells
        if measurements.restarts is not None:
            log_objective = log_objective + measurements.restarts.draws(generator, draws)
        pooled = pooled_differences(measurements, accuracy, generator, draws)
        uncollapsed = accuracy.draws(generator, draws) if pooled is None else pooled
        by_collapse = measurements.collapses.draws(generator, draws)
        difference = uncollapsed - by_collapse
        return _Truths(
            log_objective=log_objective,
            difference=difference,
            by_collapse=by_collapse,
            is_pooled=pooled is not None,
            within=np.isnan(accuracy.point).all() | (measurements.excess(-difference) <= 0),
        )

    @cached_property
    def best(self) -> npt.NDArray[np.bool_]:
        """Which cells are the best of those within the margin, or tie with it."""
        return within_tie(self.log_objective, self.within)

    def behind(self, row: int) -> float:
        """Return by which fraction this cell's objective is above the best one's, at most with LOSS_QUANTILE."""
        least = np.where(self.best, self.log_objective, np.inf).min(axis=1)
        # Without a cell within the margin, the difference to infinity counts as none.
        longer = np.maximum(self.log_objective[:, row] - least, 0.0)
        return math.expm1(float(np.quantile(longer, LOSS_QUANTILE)))


def within_tie(level: Array, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which of these rows, along the last axis, are within TIE of the least level among them; NaN is not."""
    rows = rows & ~np.isnan(level)
    least = np.where(rows, level, np.inf).min(axis=-1, keepdims=True, initial=np.inf)
    return np.asarray(rows & (level <= least + math.log1p(TIE)))
