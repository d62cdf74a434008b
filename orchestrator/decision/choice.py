"""Chooses the best of several cells by an objective among those that keep their accuracy, and says how sure that is.

Objectives are compared by their logarithms, accuracies by their differences from the baseline's. Probabilities come
from draws of each cell's true value: the objective from its moderated t around its mean (a flat prior on the means),
the accuracy pooled over cells with similar batches and recipes (`pooling`): accuracies are related, and independent
draws would overstate the chance of being best. "Best" means that no cell within the margin is more than TIE better, as
in ranking and selection (Bechhofer, "A single-sample multiple decision procedure …", Annals of Mathematical Statistics
25, 1954): cells that do the same work must not split the probability between them.

Rules that weigh a cell's gain against the chance that it misses the margin (time divided by probability; the expected
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
import numpy.typing as npt

from orchestrator.decision.contest import (
    DRAWS,
    Contest,
    Means,
    accuracy_differences,
    log_objectives,
    pooled_differences,
)
from orchestrator.decision.recommendation import SURE
from orchestrator.statistics.means import Array, Moments

TIE = 0.02
"""Cells whose objectives differ by less than this part are as good as each other."""

LOSS_QUANTILE = 0.95
"""Quantile of the chosen cell's loss against the best one."""

BY_DRAWS = 0.01
"""Smaller differences between probabilities may be due to the draws alone."""

SHOWN = 0.05
"""A cell is shown to lose accuracy if its chance of being within the margin is below this."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The outcome of a contest. Arrays have one entry per cell."""

    favourite: int | None
    """The cell that the rule chooses, recommended or not yet (`Contenders.chosen`); None if no cell qualifies."""
    log_objective: Means
    accuracy_difference: Means
    """Differences from the baseline, above 0 if a cell is more accurate; points are NaN if accuracy is not compared."""
    pooled_difference: Array
    """Medians of the same, pooled over similar cells: a cell qualifies once the margin covers it."""
    p_within: Array
    p_best: Array
    passes: npt.NDArray[np.bool_]
    """Whether each qualifies by accuracy: more likely than not within the margin, or not compared."""
    tied: int = 0
    """How many cells within the margin are within TIE of the least objective."""
    by_accuracy: bool = False
    """Whether the favourite is the most accurate of those; else of those that are SURE to be as good as any."""
    all_tie: bool = False
    """Whether those are all cells within the margin, and there are several."""
    behind: float = math.nan
    """How far the favourite's objective is at most above the best one's, as a fraction of it, with probability
    LOSS_QUANTILE; the best is among the cells within the margin. NaN if one seed per cell gives no estimate."""

    def best_of(self, rows: npt.NDArray[np.bool_]) -> int | None:
        """Of these cells, the most accurate of those within TIE of their least objective; None if none qualifies.

        This is the rule of `choose` without `p_best`, which compares with all cells and not with these alone.
        """
        level = self.log_objective.point
        points = np.where(rows & self.passes & ~np.isnan(level), level, np.inf)
        if np.isinf(points).all():
            return None
        loss = -np.nan_to_num(self.accuracy_difference.point, nan=-np.inf)
        return int(np.lexsort((points, loss, points > points.min() + math.log1p(TIE)))[0])


def choose(contest: Contest, generator: np.random.Generator, draws: int = DRAWS) -> Choice:
    """The cell with the least objective among those more likely than not within the margin of the baseline.

    Among cells within TIE of the least, which count as equal, the most accurate of those SURE to be so, or of all: that
    loses nothing and is less likely to miss the margin. This rejects more cells than those shown to be worse: a cell
    likely to miss the margin is named as one that further seeds may bring in, but not recommended. NaN probabilities if
    no cell has a second seed. With 20,000 `draws` a probability is accurate to ± 0.7%, with 2,000 to ± 2.2%.
    """
    level, difference = log_objectives(contest.objective), accuracy_differences(contest)
    times = level.draws(generator, draws)
    compared = ~np.isnan(difference.point)
    pooled = pooled_differences(contest, difference, generator, len(times))
    losses = difference.draws(generator, len(times)) if pooled is None else pooled
    pooled_median = difference.point.copy()
    if pooled is not None:
        pooled_median[compared] = np.median(pooled[:, compared], axis=0)
    within = np.where(compared, losses >= -contest.margin, True)
    unknown = compared & np.isnan(difference.error)
    p_within = np.where(~compared | unknown, np.nan, within.mean(axis=0))
    passes = np.where(compared, np.where(unknown, difference.point >= -contest.margin, p_within >= 0.5), True)
    standing = passes & ~np.isnan(level.point)
    if not standing.any():
        return Choice(
            favourite=None,
            log_objective=level,
            accuracy_difference=difference,
            pooled_difference=pooled_median,
            p_within=p_within,
            p_best=np.full(len(standing), np.nan),
            passes=passes,
        )
    least = np.where(within & ~np.isnan(level.point), times, np.inf)
    best = within & (times <= least.min(axis=1, keepdims=True) + math.log1p(TIE))
    p_best = np.where(np.isnan(level.error) | unknown | np.isnan(level.point), np.nan, best.mean(axis=0))
    points = np.where(standing, level.point, np.inf)
    tied = points <= points.min() + math.log1p(TIE)
    loss = -Moments.of(contest.accuracy).mean if compared.any() else np.zeros(len(points))
    unsure = np.where(compared.any(), ~(p_best >= SURE), False)
    favourite = int(np.lexsort((points, loss, unsure, ~tied))[0])
    return Choice(
        favourite=favourite,
        log_objective=level,
        accuracy_difference=difference,
        pooled_difference=pooled_median,
        p_within=p_within,
        p_best=p_best,
        passes=passes,
        tied=int(tied.sum()),
        by_accuracy=bool(loss[favourite] == loss[tied].min()),
        all_tie=bool(tied.sum() > 1 and tied.sum() == standing.sum()),
        behind=math.nan if np.isnan(p_best[favourite]) else _at_most(times[:, favourite] - least.min(axis=1)),
    )


def _at_most(behind: Array) -> float:
    """As a fraction of the best's; minus infinity is a draw with no cell within the margin, where nothing is lost."""
    return max(0.0, math.expm1(float(np.quantile(np.maximum(behind, 0.0), LOSS_QUANTILE))))
