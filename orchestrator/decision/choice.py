"""Which of several cells is best by an objective, without being shown to lose accuracy, and how sure that is.

Objectives are compared by their logarithms, accuracies by their differences from the baseline's. What a seed does to
all cells alike is taken out first, and the variances that are left are shrunk towards what the cells have in common
(`shrinkage`); shrinking those of the differences instead would count the baseline's error as often as there are cells.
The probabilities are those of drawing each cell's true value: of the objective from its moderated t around its mean (a
flat prior on the means), of the accuracy with what cells of like batches and recipes tell (`pooling`), because
accuracies hang together, and drawing each by itself tells the chance of being best too high. "Best" means that no cell
within the margin is more than TIE better, as in ranking and selection (Bechhofer, "A single-sample multiple decision
procedure …", Annals of Mathematical Statistics 25, 1954): cells that do the same work must not split the probability
between them.

Rules that weigh a cell's gain against the chance that it misses the margin (time over probability; the expected
opportunity cost of Chick and Inoue, "New two-stage and sequential procedures for selecting the best simulated system",
Operations Research 49, 2001, with a miss counted as training twice) were tried in simulated sweeps: none has fewer
misses and less regret at every number of seeds (docs/results/statistics.md). So the plain rule stays, and how far its
choice may be behind the best is said. Of cells that tie, the likeliest to be best is not taken either: which of them is
ahead is mostly chance, whereas the more accurate one loses nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.decision.recommendation import SURE
from orchestrator.statistics.means import TAIL, Array, Interval, Moments, logs
from orchestrator.statistics.pooling import Likeness, pooled_draws
from orchestrator.statistics.shrinkage import shrunken

TIE = 0.02
"""Cells whose objectives differ by less than this part are as good as each other."""

LOSS_QUANTILE = 0.95
"""Of how far the chosen cell may be behind the best one."""

DRAWS = 20_000
BY_DRAWS = 0.01
"""Probabilities that differ by no more may differ by the draws alone."""

_MOST_DRAWN = 2_000_000
"""Values drawn for all cells together: with over 100 cells the draws are fewer, and still 2,000 for 1,000 cells."""

SHOWN = 0.05
"""A cell is shown to lose accuracy where the chance of being within the margin is below this."""

NORMAL = 1e9
"""Degrees of freedom from which t is the normal distribution, for all a draw can tell."""

MOST_SEEDS = 30
"""More seeds than this settle nothing in practice."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What is known of the cells: rows are cells, columns are seeds, NaN is missing."""

    objective: Array
    """Above 0; less is better."""
    accuracy: Array
    """On the validation split; all NaN where it is not measured."""
    baseline: int | None
    """The row that accuracies are compared with."""
    margin: float
    likeness: Likeness | None = None
    """Of the cells; None where each is taken by itself."""


@dataclass(frozen=True, kw_only=True)
class Means:
    """Estimates of each cell's true value: draws are `point + error · t(freedom)`; an error of NaN is unknown."""

    point: Array
    n: Array
    error: Array
    freedom: Array

    def intervals(self) -> Interval:
        """95% of each."""
        from scipy.special import stdtrit

        half = stdtrit(np.minimum(self.freedom, NORMAL), TAIL) * self.error
        return Interval(point=self.point, lo=self.point - half, hi=self.point + half)

    def draws(self, generator: np.random.Generator, most: int = DRAWS) -> Array:
        """Shape (draws, cells)."""
        known = self.error > 0
        shape = (max(1_000, min(most, _MOST_DRAWN // max(1, len(known)))), len(known))
        freedom = np.where(known, np.minimum(self.freedom, NORMAL), NORMAL)
        return self.point + np.where(known, self.error, 0.0) * generator.standard_t(freedom, shape)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The outcome of a contest. Arrays are by cell."""

    chosen: int | None
    level: Means
    """Of the logarithms of the objective."""
    shortfall: Means
    """Of the differences in accuracy from the baseline; points are NaN where accuracy was not compared."""
    middle: Array
    """Of the same with what like cells tell, medians: a cell passes from this margin on."""
    p_within: Array
    p_best: Array
    passes: Array
    """Whether each may be chosen for its accuracy: within the margin more likely than not, or not compared."""
    tied: int
    """How many cells within the margin are within TIE of the least objective."""
    by_accuracy: bool
    """Whether the chosen one is the most accurate of those; else it is of those that are SURE to be as good as any."""
    all_tie: bool
    """Whether those are all that are within the margin, and several."""
    behind: float = math.nan
    """By what part of the best's objective the chosen cell's is at most above it, with probability LOSS_QUANTILE; the
    best one is of those within the margin. NaN where one seed a cell tells nothing."""


def choose(contest: Contest, generator: np.random.Generator, draws: int = DRAWS) -> Choice:
    """The cell of least objective among those more likely than not to be within the margin of the baseline.

    Of cells within TIE of the least, which are as good, the most accurate of those that are SURE to be so, or of all:
    it loses nothing, and is less likely to miss the margin. That leaves out more than those shown to be worse: a cell
    that is likely to miss the margin is named as what further seeds may bring in, but not recommended. NaN
    probabilities where no cell has a second seed. Of 20,000 `draws` a probability is known to ± 0.7%, of 2,000 to
    ± 2.2%.
    """
    level, shortfall = levels(contest.objective), shortfalls(contest)
    times = level.draws(generator, draws)
    compared = ~np.isnan(shortfall.point)
    pooled = pooled_shortfalls(contest, shortfall, generator, len(times))
    losses = shortfall.draws(generator, len(times)) if pooled is None else pooled
    middle = shortfall.point.copy()
    if pooled is not None:
        middle[compared] = np.median(pooled[:, compared], axis=0)
    within = np.where(compared, losses >= -contest.margin, True)
    unknown = compared & np.isnan(shortfall.error)
    p_within = np.where(~compared | unknown, np.nan, within.mean(axis=0))
    passes = np.where(compared, np.where(unknown, shortfall.point >= -contest.margin, p_within >= 0.5), True)
    standing = passes & ~np.isnan(level.point)
    if not standing.any():
        return Choice(
            chosen=None,
            level=level,
            shortfall=shortfall,
            middle=middle,
            p_within=p_within,
            p_best=np.full(len(standing), np.nan),
            passes=passes,
            tied=0,
            by_accuracy=False,
            all_tie=False,
        )
    least = np.where(within & ~np.isnan(level.point), times, np.inf)
    best = within & (times <= least.min(axis=1, keepdims=True) + math.log1p(TIE))
    p_best = np.where(np.isnan(level.error) | unknown | np.isnan(level.point), np.nan, best.mean(axis=0))
    points = np.where(standing, level.point, np.inf)
    tied = points <= points.min() + math.log1p(TIE)
    loss = -Moments.of(contest.accuracy).mean if compared.any() else np.zeros(len(points))
    unsure = np.where(compared.any(), ~(p_best >= SURE), False)
    chosen = int(np.lexsort((points, loss, unsure, ~tied))[0])
    return Choice(
        chosen=chosen,
        level=level,
        shortfall=shortfall,
        middle=middle,
        p_within=p_within,
        p_best=p_best,
        passes=passes,
        tied=int(tied.sum()),
        by_accuracy=bool(loss[chosen] == loss[tied].min()),
        all_tie=bool(tied.sum() > 1 and tied.sum() == standing.sum()),
        behind=math.nan if np.isnan(p_best[chosen]) else _at_most(times[:, chosen] - least.min(axis=1)),
    )


def pooled_shortfalls(contest: Contest, shortfall: Means, generator: np.random.Generator, draws: int) -> Array | None:
    """Draws, shape (draws, cells), pooled over like cells; None where that has nothing to say, as of unknown errors."""
    compared = ~np.isnan(shortfall.point)
    if contest.likeness and contest.baseline is not None and not np.isnan(shortfall.error[compared]).any():
        own = accuracies(contest)
        alike = Likeness(batch=contest.likeness.batch[compared], recipe=contest.likeness.recipe[compared])
        freedom = float(np.median(own.freedom[compared])) if compared.any() else math.inf
        truths = pooled_draws(own.point[compared], own.error[compared], freedom, alike, generator, draws)
        if truths is not None:
            found = np.full((draws, len(compared)), np.nan)
            found[:, compared] = truths
            itself = compared & (shortfall.error == 0) & (shortfall.point == 0)
            return np.where(itself, 0.0, found - found[:, [contest.baseline]])
    return None


def _at_most(behind: Array) -> float:
    """As a part of the best's; minus infinity is a draw in which no cell is within the margin, and nothing is lost."""
    return max(0.0, math.expm1(float(np.quantile(np.maximum(behind, 0.0), LOSS_QUANTILE))))


def seeds_to_settle(gap: float, variance: float) -> int | None:
    """Seeds at which a difference of this size is known to have its sign with probability SURE; None beyond MOST_SEEDS.

    `variance` is of the difference between one seed's values; n ≥ t(SURE, n − 1)² · variance / gap².
    """
    from scipy.special import stdtrit

    for n in range(2, MOST_SEEDS + 1):
        if stdtrit(n - 1, SURE) * math.sqrt(variance / n) <= abs(gap):
            return n
    return None


def levels(objective: Array) -> Means:
    """Of the logarithms of the cells' objectives."""
    values = logs(objective)
    return _means(Moments.of(values), _own_variances(values))


def accuracies(contest: Contest) -> Means:
    """Of the cells' own accuracies, whatever the baseline's."""
    return _means(Moments.of(contest.accuracy), _own_variances(contest.accuracy))


def shortfalls(contest: Contest) -> Means:
    """Of each cell less the baseline, whose own error is in all of them."""
    accuracy, base = contest.accuracy, contest.baseline
    if base is None or np.isnan(accuracy[base]).all():
        nothing = np.full(len(accuracy), np.nan)
        return Means(point=nothing, n=np.zeros(len(accuracy)), error=nothing, freedom=nothing)
    own = accuracies(contest)
    error = np.sqrt(own.error**2 + own.error[base] ** 2)
    differences = Moments.of(accuracy - accuracy[base])
    # Two rules may ask for the same training, as all do at the reference batch: the same figures with every seed.
    twins = (differences.n >= 2) & (differences.mean == 0) & (differences.variance == 0)
    itself = twins | (np.arange(len(accuracy)) == base)
    return Means(
        point=own.point - own.point[base],
        n=np.minimum(own.n, own.n[base]),
        error=np.where(itself, 0.0, error),
        freedom=np.where(itself, np.inf, np.minimum(own.freedom, own.freedom[base])),
    )


def _own_variances(values: Array) -> Array:
    """Between seeds, without what a seed does to all cells alike where all that have values have the same seeds.

    That is taken as the median over the cells, which one wild cell does not move; it takes about .43/C of a normal
    cell's own variance with it (1 − 2/C + π/2C). Of two cells the median is the mean, and takes half.
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
