"""Chooses the best cell by an objective among those that keep their accuracy, and estimates how certain that is.

Objectives are compared by their logarithms, accuracies by their differences from the baseline's. Probabilities come
from draws of each cell's true value: the objective from its moderated t (a flat prior on the means), the accuracy
pooled over cells with similar batches and recipes (`statistics.pooling`). "Best" means that no cell within the margin
is more than TIE better (Bechhofer, "A single-sample multiple decision procedure …", Annals of Mathematical Statistics
25, 1954), so that cells that do the same work do not split the probability. Among the cells that may be the best, one
with the fewest device-hours is chosen, and of several the most accurate one. Rules that weigh a cell's gain against the
chance that it misses the margin did no better in simulated sweeps (docs/results/statistics.md). A seed's common effect
on all cells is removed first; then the remaining variances inform each other (`statistics.variances`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from orchestrator.decision.recommendation import SURE, SURE_OF_SELECTED
from orchestrator.statistics.collapses import Collapses, share_draws
from orchestrator.statistics.intervals import TAIL, Array, Interval, Moments, least_error, logs
from orchestrator.statistics.pooling import Likeness, pooled_draws
from orchestrator.statistics.variances import moderated

DRAWS = 20_000
_MOST_DRAWN = 2_000_000
"""Draws for all cells together: above 100 cells each gets fewer, still 2,000 at 1,000 cells."""

NORMAL = 1e9
"""Degrees of freedom above which t is treated as the normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """The seeds that reached a target; one that missed it is trained again. Arrays with one element per cell."""

    hits: Array
    n: Array
    """All seeds that tried."""
    missed: Array
    """The time of a seed that misses the target over the time of a seed that reaches it."""

    def draws(self, generator: np.random.Generator, draws: int) -> Array:
        """Return draws of the logarithm of the expected time over that at the measured share, shape (draws, cells).

        The share of seeds that reach the target has Jeffreys' prior: few seeds say little about it. If all seeds of the
        sweep reached the target, restarts are not expected.
        """
        if not (self.hits < self.n).any():
            return np.zeros((draws, len(self.n)))
        share = share_draws(self.hits, self.n, generator, draws)
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = 1 + self.missed * (1 - share) / share
            measured = 1 + self.missed * (self.n - self.hits) / self.hits
            return np.nan_to_num(np.log(drawn / measured), posinf=0.0, neginf=0.0)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The measurements of the cells: rows are cells, columns are seeds, NaN is missing."""

    objective: Array
    """Above 0; smaller is better."""
    accuracy: Array
    """On the validation split; all NaN if not measured."""
    baseline: int | None
    """The row that accuracies are compared with."""
    margin: float
    likeness: Likeness | None = None
    """Similarity of the cells; None if each is treated on its own."""
    collapsed: npt.NDArray[np.bool_] | None = None
    """Which seeds collapsed (`statistics.collapses`) or ended without an accuracy; None if none did."""
    samples: float = math.nan
    """The number of samples of which each accuracy is the share; NaN if unknown."""
    restarts: Restarts | None = None
    """Which seeds reached the target; None if the objective is not the time to one."""
    hours: Array | None = None
    """Device-hours of a trial of each cell, times any constant price; NaN is unknown. None if all cells cost alike."""

    @property
    def log_hours(self) -> Array:
        """Logarithms of the hours, one per cell; NaN if unknown."""
        return np.full(len(self.objective), np.nan) if self.hours is None else logs(self.hours)

    @property
    def sound(self) -> Array:
        """The accuracies without collapsed ones."""
        return self.accuracy if self.collapsed is None else np.where(self.collapsed, np.nan, self.accuracy)

    @property
    def lost(self) -> Collapses:
        """The losses by collapsed seeds."""
        own, sound = Moments.of(self.accuracy), Moments.of(self.sound)
        if self.collapsed is None:
            none = np.zeros_like(own.n)
            return Collapses(hits=none, n=own.n, drop=none, below=none, likeness=self.likeness)
        hits = self.collapsed.sum(axis=1).astype(np.float64)
        missing = (self.collapsed & np.isnan(self.accuracy)).sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            drop = np.where(hits > 0, (sound.mean - own.mean) * own.n / hits, 0.0)
        # A seed without an accuracy may be worse than any other, so that its drop has no bound.
        drop = np.where(missing > 0, np.inf, drop)
        below = np.zeros_like(drop) if self.baseline is None else sound.mean[self.baseline] - sound.mean
        return Collapses(hits=hits, n=own.n + missing, drop=drop, below=below, likeness=self.likeness)


@dataclass(frozen=True, kw_only=True)
class Means:
    """Estimates of each cell's true value; draws are `point + error · t(freedom)`, a NaN error is unknown."""

    point: Array
    n: Array
    error: Array
    freedom: Array

    def intervals(self) -> Interval:
        """Return 95% intervals, one per cell."""
        from scipy.special import stdtrit

        half = stdtrit(np.minimum(self.freedom, NORMAL), TAIL) * self.error
        return Interval(point=self.point, lo=self.point - half, hi=self.point + half)

    def minus(self, row: int) -> Means:
        """Return the difference of each cell from one of them, whose error enters all differences."""
        return Means(
            point=self.point - self.point[row],
            n=np.minimum(self.n, self.n[row]),
            error=np.hypot(self.error, self.error[row]),
            freedom=np.minimum(self.freedom, self.freedom[row]),
        )

    def p_below(self, value: float) -> Array:
        """Return the probability that each cell's true value is below this one; NaN if its error is unknown."""
        from scipy.special import stdtr

        room = value - self.point
        with np.errstate(divide="ignore", invalid="ignore"):
            by_chance = stdtr(np.minimum(self.freedom, NORMAL), room / self.error)
        return np.asarray(np.where(self.error > 0, by_chance, np.where(np.isnan(self.error), np.nan, room > 0)))

    def draws(self, generator: np.random.Generator, most: int) -> Array:
        """Return draws of the true values, shape (draws, cells)."""
        known = self.error > 0
        shape = (max(1_000, min(most, _MOST_DRAWN // max(1, len(known)))), len(known))
        freedom = np.where(known, np.minimum(self.freedom, NORMAL), NORMAL)
        return self.point + np.where(known, self.error, 0.0) * generator.standard_t(freedom, shape)


def log_objectives(objective: Array) -> Means:
    """Estimate the logarithms of the cells' objectives."""
    return _means(logs(objective))


def accuracies(contest: Contest) -> Means:
    """Estimate the cells' accuracies without collapsed seeds, independent of the baseline's."""
    # Seeds that are equal by chance say little: a share of few samples varies by more.
    share = np.clip(Moments.of(contest.sound).mean, 0.0, 1.0)
    return _means(contest.sound, _of_spread(contest), share * (1 - share) / contest.samples)


def _of_spread(contest: Contest) -> Array | None:
    """Return what the spread of accuracies may depend on, shape (cells, 2): the batch, and the loss in margins."""
    if contest.likeness is None or not (contest.likeness.batch > 0).all():
        return None
    mean = Moments.of(contest.sound).mean
    if np.isnan(mean).all():
        return None
    lost = (np.nanmax(mean) - mean) / contest.margin
    return np.column_stack([_PER_DOUBLING * np.log2(contest.likeness.batch), np.log1p(lost)])


_PER_DOUBLING = 0.7
"""A plausible change of the log variance with each doubling of the batch: the spread doubles with two doublings."""


def accuracy_differences(contest: Contest) -> Means:
    """Estimate each cell's accuracy minus the baseline's, whose error enters all differences.

    Errors are at least those that the number of samples implies: shares of few samples are equal by chance.
    """
    accuracy, base = contest.sound, contest.baseline
    if base is None or np.isnan(accuracy[base]).all():
        nothing = np.full(len(accuracy), np.nan)
        return Means(point=nothing, n=np.zeros(len(accuracy)), error=nothing, freedom=nothing)
    difference = accuracies(contest).minus(base)
    differences = Moments.of(accuracy - accuracy[base])
    # Two rules may describe the same training, as all do at the reference batch: equal figures for every seed.
    equivalent_cells = (differences.n >= 2) & (differences.mean == 0) & (differences.variance == 0)
    if contest.likeness:
        equivalent_cells &= contest.likeness.batch == contest.likeness.batch[base]
    itself = equivalent_cells | (np.arange(len(accuracy)) == base)
    apart = np.where(
        difference.point == 0, np.finfo(float).tiny, difference.point
    )  # `least_error` takes 0 for the same training
    error = np.maximum(difference.error, least_error(apart, contest.samples * difference.n))
    return replace(difference, error=np.where(itself, 0.0, error), freedom=np.where(itself, np.inf, difference.freedom))


_EXPECTED = 0.5
"""The loss in margins that is expected of a cell before any measurement."""


def pooled_differences(contest: Contest, difference: Means, generator: np.random.Generator, draws: int) -> Array | None:
    """Return draws pooled over similar cells, shape (draws, cells); None if pooling is impossible."""
    compared = ~np.isnan(difference.point)
    if contest.likeness is None or contest.baseline is None or np.isnan(difference.error[compared]).any():
        return None
    own = accuracies(contest)
    alike = Likeness(batch=contest.likeness.batch[compared], recipe=contest.likeness.recipe[compared])
    baseline = int(compared[: contest.baseline].sum())
    error = np.sqrt(np.maximum(own.error**2, difference.error**2 - own.error[contest.baseline] ** 2))
    # Few data must not decide: before any measurement, a cell is expected halfway to the margin.
    expected = _EXPECTED * contest.margin
    ahead = np.where(np.arange(len(compared)) == contest.baseline, expected, 0.0)
    point = (own.point - ahead)[compared]
    truths = pooled_draws(point, error[compared], own.freedom[compared], alike, generator, draws, baseline=baseline)
    if truths is None:
        return None
    drawn = np.full((draws, len(compared)), np.nan)
    drawn[:, compared] = truths
    itself = compared & (difference.error == 0) & (difference.point == 0)
    return np.where(itself, 0.0, drawn - drawn[:, [contest.baseline]] - expected)


def _means(values: Array, covariates: Array | None = None, floor: Array | None = None) -> Means:
    moments = Moments.of(values)
    pooled, freedom = moderated(_own_variances(values), moments.n - 1, covariates, floor)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(freedom > 0, np.sqrt(pooled / moments.n), np.nan)
    return Means(point=moments.mean, n=moments.n, error=error, freedom=freedom)


def _own_variances(values: Array) -> Array:
    """Return variances between seeds, without a seed's common effect if most cells have the same seeds.

    The effect is the mean over the cells: their median varies with single cells if there are few, so that these seem to
    vary little.
    """
    known = ~np.isnan(values)
    measured, complete = known.any(axis=1), known.any(axis=0)
    cells = int(measured.sum())
    if cells < 2 or (known[np.ix_(measured, complete)].mean(axis=0) < _MOST).any():
        return Moments.of(values).variance
    complete_values = values[np.ix_(measured, complete)]
    deviations = complete_values - np.nanmean(complete_values, axis=1, keepdims=True)
    variance = np.full(len(values), np.nan)
    variance[measured] = Moments.of(deviations - np.nanmean(deviations, axis=0)).variance / (1 - 1 / cells)
    return variance


_MOST = 0.75
"""A seed's common effect is removed if at least this part of the cells has the seed."""


ROUNDING = 1e-9
"""Figures that are equal may come out apart by less."""

TIE = 0.02
"""Cells whose objectives differ by less than this fraction are equally good."""

LOSS_QUANTILE = 0.95
"""Quantile of the chosen cell's loss against the best one."""

BY_DRAWS = 0.01
"""Smaller differences between probabilities may be due to the draws alone."""

SAFE = 0.95
"""A cell is safe if it is within the margin with at least this probability."""

SHOWN_BETTER = 0.99
"""A better metric justifies more device-hours if it is shown with this probability."""

SHOWN = 0.05
"""A cell is shown to lose accuracy if its chance of being within the margin is below this."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The outcome of a contest. Arrays have one entry per cell."""

    contest: Contest
    favourite: int | None
    """The cell that the rule chooses, recommended or not yet (`Contenders.chosen`); None if no cell qualifies."""
    safe: int | None = None
    """The same among the cells that are within the margin with probability SAFE; None if chance is unknown."""
    log_objective: Means
    accuracy_difference: Means
    """Differences from the baseline, above 0 if a cell is more accurate; points are NaN if accuracy is not compared."""
    pooled_difference: Array
    """Medians of the same, pooled over similar cells: a cell qualifies once the margin covers it."""
    p_within: Array
    p_best: Array
    passes: npt.NDArray[np.bool_]
    """Whether each qualifies by accuracy: more likely than not within the margin; all do if none has an accuracy."""
    behind: float = math.nan
    """How far the favourite's objective is at most above the best one's, as a fraction of it, with probability
    LOSS_QUANTILE; the best is among the cells within the margin. NaN if one seed per cell gives no estimate."""

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
    def needed_probability(self) -> float:
        """The least probability that suffices for CLEAR."""
        n = Moments.of(self.contest.objective).n
        some_have_more_seeds = len(set(n[n > 0])) > 1
        return SURE_OF_SELECTED if some_have_more_seeds else SURE

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
        one has a better metric.
        """
        level = np.where(rows, self.qualified, np.nan)
        if np.isnan(level).all():
            return None
        tied = _tied(level)
        behind_fastest = self.log_objective.minus(int(np.nanargmin(level)))
        may_be_best = ~np.isnan(level) & (tied | (behind_fastest.p_below(math.log1p(TIE)) > 1 - SAFE))
        choice = self._cheapest(may_be_best, tied)
        # More hours buy a better metric only if chance does not explain the difference.
        while (better := tied & self.is_shown_better_than(choice)).any():
            choice = self._cheapest(better, tied)
        return choice

    def _cheapest(self, rows: npt.NDArray[np.bool_], tied: npt.NDArray[np.bool_]) -> int:
        """Return the row within TIE of the fewest hours; of several a tied, then a SURE, then the most accurate one."""
        hours = np.where(rows, self.contest.log_hours, np.nan)
        is_dearer = rows & ~_tied(hours) & ~np.isnan(hours).all()
        is_compared = not np.isnan(self.accuracy_difference.point).all()
        is_unsure = is_compared & ~(self.p_best >= SURE)
        order = (self.log_objective.point, -self.accuracy_difference.point, is_unsure, ~tied, is_dearer, ~rows)
        return int(np.lexsort(order)[0])  # the last key is the first to decide

    def is_shown_better_than(self, row: int) -> npt.NDArray[np.bool_]:
        """Return which cells have a better metric than this one, with probability SHOWN_BETTER for all tied cells."""
        difference = accuracies(self.contest).minus(row)
        least = least_error(difference.point, self.contest.samples * difference.n)
        p_worse = replace(difference, error=np.maximum(difference.error, least)).p_below(ROUNDING)
        # Each tied cell is a further chance of a false difference (Bonferroni).
        return np.asarray(p_worse <= (1 - SHOWN_BETTER) / max(1, int(self.tied.sum()) - 1))

    def needs_more_hours(self, row: int, other: int) -> bool:
        """Return whether a cell takes more device-hours than another one, by more than TIE; False if unknown."""
        return bool(self.contest.log_hours[row] > self.contest.log_hours[other] + math.log1p(TIE))

    def ties_with(self, row: int) -> npt.NDArray[np.bool_]:
        """Return which other cells qualify and are as likely as this one to be the best, or not separable from it.

        Cells are separable if the 95% interval of the ratio of their objectives excludes 1.
        """
        ratio = self.log_objective.minus(row).intervals()
        is_inseparable = (ratio.lo <= 0) & (ratio.hi >= 0)
        as_likely = self.p_best >= self.p_best[row] - BY_DRAWS
        others = ~np.isnan(self.qualified) & (np.arange(len(as_likely)) != row)
        return np.asarray(others & (is_inseparable | as_likely))

    def p_costly(self, row: int, other: int) -> float:
        """Return the probability that cost grows by a larger factor from `other` to `row` than the objective shrinks.

        Hours are the time multiplied by a constant, so that the error of the ratio of times counts twice. NaN if hours
        or errors are unknown.
        """
        from scipy.special import stdtr

        growth = float(self.contest.log_hours[row] - self.contest.log_hours[other])
        shrinks = self.log_objective.minus(row)
        excess = growth - float(shrinks.point[other])
        error = 2 * float(shrinks.error[other])
        if math.isnan(excess) or math.isnan(error):
            return math.nan
        if error == 0:
            return float(excess > ROUNDING)
        return float(stdtr(min(float(shrinks.freedom[other]), NORMAL), excess / error))

    def is_costly(self, row: int, other: int) -> bool:
        """Return whether cost probably grows by a larger factor than the objective shrinks (see `p_costly`)."""
        return self.p_costly(row, other) > 0.5


def choose(contest: Contest, generator: np.random.Generator, draws: int = DRAWS) -> Choice:
    """Choose a cell among those with P(accuracy within margin) of at least 50%, by `Choice.best_of`.

    A cell that is likely to miss the margin is not chosen, even if it is not shown to be worse; further seeds may admit
    it. Nor is a cell with a collapsed seed if the mean of all of its seeds misses the margin, nor one that misses it by
    collapses alone with a probability above 1 − SAFE; the collapsed seeds may be those of similar cells. The baseline
    counts by its other seeds. Probabilities are NaN if no cell has a second seed. With 20,000 `draws` a probability is
    accurate to ± 0.7%, with 2,000 to ± 2.2%.
    """
    level, difference, lost = log_objectives(contest.objective), accuracy_differences(contest), contest.lost
    times = level.draws(generator, draws)
    if contest.restarts is not None:
        times = times + contest.restarts.draws(generator, len(times))
    compared = ~np.isnan(difference.point)
    by_speed_alone = not compared.any()
    unknown = compared & np.isnan(difference.error)
    pooled = pooled_differences(contest, difference, generator, len(times))
    sound = difference.draws(generator, len(times)) if pooled is None else pooled
    by_collapse = lost.draws(generator, len(times))
    losses = sound - by_collapse
    own = difference.point - lost.mean
    within = by_speed_alone | (losses >= -contest.margin)
    p_within = np.where(~compared | unknown, np.nan, within.mean(axis=0))
    passes = by_speed_alone | np.where(unknown, own >= -contest.margin, p_within >= 0.5)
    passes &= ~((lost.hits > 0) & (own < -contest.margin))
    passes &= (by_collapse <= contest.margin).mean(axis=0) >= SAFE
    least = np.where(within & ~np.isnan(level.point), times, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    best = within & (times <= least + math.log1p(TIE))
    p_best = np.where(np.isnan(level.point) | np.isnan(level.error) | unknown, np.nan, best.mean(axis=0))
    choice = Choice(
        contest=contest,
        favourite=None,
        log_objective=level,
        accuracy_difference=replace(difference, point=own),
        pooled_difference=own if pooled is None else np.median(losses, axis=0),
        p_within=p_within,
        p_best=p_best,
        passes=passes,
    )
    favourite = choice.best_of(np.full(len(own), True))
    if favourite is None:
        return replace(choice, p_best=np.full_like(p_best, np.nan))
    # A draw of minus infinity has no cell within the margin.
    behind = math.expm1(float(np.quantile(np.maximum(times[:, favourite] - least[:, 0], 0.0), LOSS_QUANTILE)))
    if np.isnan(p_best[favourite]):
        behind = math.nan
    safe = None if np.isnan(p_within[favourite]) else choice.best_of(p_within >= SAFE)
    return replace(choice, favourite=favourite, safe=safe, behind=behind)


def _tied(level: Array) -> npt.NDArray[np.bool_]:
    return np.asarray(level <= np.fmin.reduce(level, initial=np.inf) + math.log1p(TIE))  # NaN left out
