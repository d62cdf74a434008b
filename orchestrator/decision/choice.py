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
from collections.abc import Sequence
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
from orchestrator.decision.thresholds import FEWEST_SEEDS, NOTICED, SAFE, SHOWN_BETTER, SURE, SURE_OF_SELECTED, TIE
from orchestrator.statistics import margins
from orchestrator.statistics.intervals import Array, Moments, least_error, student_quantile

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
    passes: npt.NDArray[np.bool_]
    """Whether each qualifies by accuracy: more likely than not within the margin; all do if none has an accuracy."""
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
    def qualified(self) -> Array:
        """Logarithms of the objectives of the cells that qualify; NaN for others."""
        return np.where(self.passes, self.log_objective.point, np.nan)

    @property
    def tied(self) -> npt.NDArray[np.bool_]:
        """Which of the cells that qualify are within TIE of their least objective."""
        return _tied(self.qualified)

    def best_of(self, rows: npt.NDArray[np.bool_]) -> int | None:
        """Return the cell to use among these; None if none of them qualifies.

        Of the cells that may be as good as the first by the objective, one with the fewest hours is used, unless a tied
        one has a metric that is better by more than the margin.
        """
        level = np.where(rows, self.qualified, np.nan)
        if np.isnan(level).all():
            return None
        tied = _tied(level)
        behind_fastest = self.log_objective.minus(int(np.nanargmin(level)))
        may_be_best = ~np.isnan(level) & (tied | (behind_fastest.p_below(math.log1p(TIE)) > 1 - SAFE))
        choice = self._cheapest(may_be_best, tied)
        # More hours buy a better metric only if it matters, and chance does not explain it.
        while (better := tied & self.is_shown_better_than(choice)).any():
            choice = self._cheapest(better, tied)
        return choice

    def _cheapest(self, rows: npt.NDArray[np.bool_], tied: npt.NDArray[np.bool_]) -> int:
        """Return the row within TIE of the fewest hours; of several a tied, a SURE, the best by pooled accuracy."""
        hours = np.where(rows, self.measurements.log_hours, np.nan)
        is_dearer = rows & ~_tied(hours) & ~np.isnan(hours).all()
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
        return bool(self.measurements.log_hours[row] > self.measurements.log_hours[other] + math.log1p(TIE))

    def ties_with(self, row: int) -> npt.NDArray[np.bool_]:
        """Return which other cells qualify and are as likely as this one to be the best, or not separable from it.

        Two cells are separable if the 95% interval of the ratio of their objectives excludes 1. Few seeds give wide
        intervals, so that a cell that is less likely than NOTICED to be the best counts as separable, too.
        """
        ratio = self.log_objective.minus(row).intervals()
        is_inseparable = (ratio.lo <= 0) & (ratio.hi >= 0) & ~(self.p_best < NOTICED)
        as_likely = self.p_best >= self.p_best[row] - BY_DRAWS
        others = ~np.isnan(self.qualified) & (np.arange(len(as_likely)) != row)
        return np.asarray(others & (is_inseparable | as_likely))

    def p_costly(self, row: int, other: int) -> float:
        """Return the probability that cost grows by a larger factor from `other` to `row` than the objective shrinks.

        Hours are the time multiplied by a constant, so that the error of the ratio of times counts twice. NaN if hours
        or errors are unknown.
        """
        from scipy.special import stdtr

        growth = float(self.measurements.log_hours[row] - self.measurements.log_hours[other])
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

    # Draws of the true values, shape (draws, cells): of the objective's logarithm, and of what is lost in accuracy.
    objective = log_objectives(measurements.objective, measurements.steps)
    times = objective.draws(generator, draws)
    if measurements.restarts is not None:
        times = times + measurements.restarts.draws(generator, len(times))
    difference = score_differences(measurements)
    pooled = pooled_differences(measurements, difference, generator, len(times))
    without_collapses = difference.draws(generator, len(times)) if pooled is None else pooled
    collapses = measurements.lost
    by_collapse = collapses.draws(generator, len(times))
    changes = without_collapses - by_collapse

    # Which cells keep their accuracy. Without any accuracy, all do.
    compared = ~np.isnan(difference.point)
    by_speed_alone = not compared.any()
    unknown = compared & np.isnan(difference.error)
    within = by_speed_alone | (margins.excess(-changes, measurements.margin) <= 0)
    p_within = np.where(~compared | unknown, np.nan, within.mean(axis=0))
    measured = difference.point - collapses.mean
    excess = margins.excess(-measured, measurements.margin)
    passes = by_speed_alone | np.where(unknown, excess <= 0, p_within >= 0.5)
    passes &= ~((collapses.hits > 0) & (excess > 0))
    passes &= (margins.excess(by_collapse, measurements.margin) <= 0).mean(axis=0) >= SAFE

    # How often each cell is the best of those within the margin; a draw of infinity has no cell within it.
    least = np.where(within & ~np.isnan(objective.point), times, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    best = within & (times <= least + math.log1p(TIE))
    no_chance = np.isnan(objective.point) | np.isnan(objective.error) | unknown
    p_best = np.where(no_chance, np.nan, best.mean(axis=0))

    choice = Choice(
        measurements=measurements,
        favourite=None,
        log_objective=objective,
        score_difference=replace(difference, point=measured),
        excess=excess,
        pooled_difference=measured if pooled is None else np.median(changes, axis=0),
        p_within=p_within,
        p_best=p_best,
        passes=passes,
    )
    favourite = choice.best_of(np.full(len(measured), True))
    if favourite is None:
        return replace(choice, p_best=np.full_like(p_best, np.nan))

    def behind(row: int | None) -> float:
        if row is None or np.isnan(p_best[row]):
            return math.nan
        # Without a cell within the margin, the difference to infinity counts as none.
        longer = np.maximum(times[:, row] - least[:, 0], 0.0)
        return math.expm1(float(np.quantile(longer, LOSS_QUANTILE)))

    safe = None if np.isnan(p_within[favourite]) else choice.best_of(p_within >= SAFE)
    return replace(choice, favourite=favourite, safe=safe, behind=behind(favourite), safe_behind=behind(safe))


def _tied(level: Array) -> npt.NDArray[np.bool_]:
    return np.asarray(level <= np.fmin.reduce(level, initial=np.inf) + math.log1p(TIE))  # NaN left out


MIDWAY_DRAWS = 4_000  # random draws of the end of a sweep; probabilities are accurate to ±1%

ALIKE = 1.1
"""With one seed per cell, a cell with more than this many times the objective of the best one is out."""


@dataclass(frozen=True, kw_only=True)
class Midway:
    """Measurements in the middle of a sweep, and which cells the whole sweep may still choose. Rows are cells.

    A cell's mean over all its seeds is its present mean plus the change by its further seeds. With n seeds of variance
    σ² and r more to come, the change is a moderated t around 0 with variance σ²/n · r/(n + r): the posterior predictive
    distribution of a normal mean with a flat prior.

    For example, two of three seeds have an accuracy of 0.965 and 0.97, and the margin ends at 0.97. The mean, 0.9675,
    misses it; a third seed of at least 0.975 would bring it to 0.97. The cell may still win, if it is faster.
    """

    measurements: Measurements
    seeds_left: Sequence[int]  # how many further seeds each cell may have

    def may_still_win(self, chosen: int | None) -> set[int]:
        """Return the rows of the chosen cell and of those that the whole sweep may still choose.

        These have a probability above 1 - SURE, or an unknown one. Empty once the choice is sure and has enough seeds.
        """
        level, p_chosen = self._log_objectives.point, self.p_chosen
        # Where chance is unknown, only cells that are far slower or far short are out.
        beaten = np.full(len(level), False) if chosen is None else level > level[chosen] + math.log(ALIKE)
        short = self._shortfalls > margins.SHORT * self.measurements.margin
        unsure = np.isnan(p_chosen) & ~np.isnan(level) & ~beaten & ~short
        rivals = set(np.flatnonzero((p_chosen > 1 - SURE) | unsure).tolist())
        if chosen is None:
            return rivals
        if p_chosen[chosen] >= SURE and not unsure.any():
            n = int((~np.isnan(self.measurements.objective[chosen])).sum())
            return {chosen} if n < FEWEST_SEEDS else set()
        return {chosen, *rivals}

    @cached_property
    def p_chosen(self) -> Array:
        """Probability that the whole sweep chooses each cell; NaN if chance is unknown, with one seed per cell.

        The sweep chooses the lowest objective among the cells whose mean accuracy is within the margin; of a tie the
        cell with the fewest hours, and of those the most accurate one. This simplifies the rule of `choose`, which
        also asks how sure the tie and the accuracies are. Accuracies are not pooled over similar cells: pooling
        gave the same answers at the same cost (docs/results/batch_scaling/phases).
        """
        generator = np.random.default_rng(0)
        # Random draws of the means over all seeds, shape (draws, cells).
        level = self._at_the_end(self._log_objectives).draws(generator, MIDWAY_DRAWS)
        accuracy = self._at_the_end(self._accuracies).draws(generator, MIDWAY_DRAWS)
        base = self.measurements.baseline
        misses = np.full(level.shape, False)
        if base is not None:
            # NaN compares as false: a cell without an accuracy misses nothing.
            misses = margins.excess(accuracy[:, [base]] - accuracy, self.measurements.margin) > 0
        # In each draw the cell that the rule chooses, and how often that is each of them.
        least = np.where(misses | np.isnan(level), np.inf, level)
        tied = np.isfinite(least) & (least <= least.min(axis=1, keepdims=True) + math.log1p(TIE))
        hours = np.where(tied, np.nan_to_num(self.measurements.log_hours, nan=0.0), np.inf)
        cheap = tied & (hours <= hours.min(axis=1, keepdims=True) + math.log1p(TIE))
        best = np.where(cheap, np.nan_to_num(accuracy, nan=0.0), -np.inf).argmax(axis=1)
        counts = np.bincount(best[tied.any(axis=1)], minlength=len(self.seeds_left))
        # With one seed there is no variance to draw from, and a probability of 0 or 1 would be made up.
        accuracy_unknown = ~np.isnan(self._shortfalls) & np.isnan(self._accuracies.error)
        unknown = (np.asarray(self.seeds_left) > 0) & (np.isnan(self._log_objectives.error) | accuracy_unknown)
        return np.where(unknown, np.nan, counts / len(level))

    def bound(self, row: int) -> float | None:
        """Return the accuracy of the cell's next seed below which its mean will not be within the margin.

        Below the bound, the mean is within the margin with a probability of at most 1 - SURE. If chance is unknown,
        the cell is `margins.SHORT` short instead. None for the baseline, without a baseline, and without a further
        seed.
        """
        base, own, margin = self.measurements.baseline, self._accuracies, self.measurements.margin
        if base is None or row == base or not self.seeds_left[row] or math.isnan(self._shortfalls[row]):
            return None
        n, left = own.n[row] + 1, self.seeds_left[row] - 1  # once that seed is in
        still = own.error[row] * math.sqrt(own.n[row] / n * left / (n + left)), own.freedom[row]
        of_base = self._at_the_end(own).error[base], own.freedom[base]
        freedom = min((degrees for error, degrees in (still, of_base) if error != 0), default=NORMAL)
        gain = float(student_quantile(min(freedom, NORMAL), SURE)) * math.hypot(still[0], of_base[0])
        least = own.point[base] - (margins.SHORT * margin if math.isnan(gain) else margin + gain)
        return float(n * least - own.n[row] * own.point[row])

    @cached_property
    def _log_objectives(self) -> Means:
        return log_objectives(self.measurements.objective, self.measurements.steps)

    @cached_property
    def _accuracies(self) -> Means:
        return accuracies(self.measurements)

    @cached_property
    def _shortfalls(self) -> Array:
        """Shortfall of each cell's accuracy, over the seeds that it shares with the baseline, if any; else NaN."""
        base, values, points = self.measurements.baseline, self.measurements.accuracy, self._accuracies.point
        if base is None:
            return np.full(len(points), np.nan)
        paired = Moments.of(values[base] - values).mean
        return np.where(np.isnan(paired), points[base] - points, paired)

    def _at_the_end(self, means: Means) -> Means:
        """Return the means over all seeds; their error is that by the further seeds, 0 without any."""
        left = np.asarray(self.seeds_left)
        changes = means.error * np.sqrt(left / np.maximum(means.n + left, 1))
        # Cells with further seeds have further timings: these are not shared yet.
        return replace(means, error=np.where(left > 0, changes, 0.0), source=None)
