"""Which cell a sweep will recommend once all of its seeds have run, judged by those that have. Pure.

A cell's mean over all its seeds is its mean by now, and what its further seeds move it by. With n seeds of variance σ²
and r to come that is a moderated t around 0 of variance σ²/n · r/(n + r): what is not known of the cell yet, and the
noise of the seeds to come (the posterior predictive distribution of a normal mean, with a flat prior on it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from orchestrator.decision.choice import TIE
from orchestrator.decision.contest import NORMAL, Contest, Means, accuracies, log_objectives
from orchestrator.decision.recommendation import FEWEST_SEEDS, SURE, is_sure
from orchestrator.statistics.means import Array, Moments

UNSETTLED = 2
"""With one seed a cell, where chance is unknown: a cell that falls short by more than this many margins is out …"""

ALIKE = 1.1
"""… and so is one with more than this many times the best one's objective."""

DRAWS = 4_000
"""Of the end of the sweep; probabilities are accurate to ± 1%."""

_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The outlook of a contest in the middle of its sweep. Rows are cells."""

    contest: Contest
    left: Sequence[int]
    """How many further seeds each cell may have."""

    def open(self, chosen: int | None) -> set[int]:
        """The cell that is chosen by now, if any is, and those that the whole sweep may choose: with a probability
        above 1 - SURE, or as far as that cannot be said yet. None where it is sure, and the chosen one has enough.
        """
        level, p_chosen = self._log_objectives.point, self.p_chosen
        short = self._shortfalls > UNSETTLED * self.contest.margin
        beaten = np.full(len(level), False) if chosen is None else level > level[chosen] + math.log(ALIKE)
        alike = np.isnan(p_chosen) & ~np.isnan(level) & ~beaten & ~short
        if chosen is None:
            return set(np.flatnonzero((p_chosen > 1 - SURE) | alike).tolist())
        if is_sure(p_chosen[chosen]) and not alike.any():
            return {chosen} if self._log_objectives.n[chosen] < FEWEST_SEEDS else set()
        return {chosen, *np.flatnonzero((p_chosen > 1 - SURE) | alike).tolist()}

    @cached_property
    def p_chosen(self) -> Array:
        """That the whole sweep chooses the cell; NaN where chance is unknown, with one seed a cell.

        By the rule of `decision.choice`: the least objective of those whose mean accuracy is within the margin, and of
        several that are as good the most accurate, though that rule prefers one that is SURE to be as good.
        Nor are accuracies pooled over like cells, which was tried: it gives the same answers for the same cost, as the
        few cells that are left have little to pool (docs/results/batch_scaling/phases).
        """
        generator = np.random.default_rng(_SEED)
        level, accuracy = (self._ends(means, generator) for means in (self._log_objectives, self._accuracies))
        base = self.contest.baseline
        misses = np.full(level.shape, False) if base is None else accuracy < accuracy[:, [base]] - self.contest.margin
        least = np.where(misses | np.isnan(level), np.inf, level)
        tied = np.isfinite(least) & (least <= least.min(axis=1, keepdims=True) + math.log1p(TIE))
        best = np.where(tied, np.nan_to_num(accuracy, nan=0.0), -np.inf).argmax(axis=1)
        counts = np.bincount(best[tied.any(axis=1)], minlength=len(self.left))
        return np.where(self._unknown, np.nan, counts / len(level))

    def bound(self, row: int) -> float | None:
        """The accuracy of the cell's next seed below which its mean will not come to be within the margin, by all odds:
        with no more than the probability 1 - SURE, or, where chance is unknown, as it is UNSETTLED margins short then.

        None of the baseline, without one, and where there is no further seed.
        """
        base, own, margin = self.contest.baseline, self._accuracies, self.contest.margin
        if base is None or row == base or not self.left[row] or math.isnan(self._shortfalls[row]):
            return None
        n, left = own.n[row] + 1, self.left[row] - 1  # once that seed is in
        still = own.error[row] * math.sqrt(own.n[row] / n * left / (n + left)), own.freedom[row]
        of_base = self._moves(own)[base], own.freedom[base]
        freedom = min((each for error, each in (still, of_base) if error != 0), default=NORMAL)
        gain = _upper(freedom) * math.hypot(still[0], of_base[0])
        least = own.point[base] - (UNSETTLED * margin if math.isnan(gain) else margin + gain)
        return float(n * least - own.n[row] * own.point[row])

    @cached_property
    def _log_objectives(self) -> Means:
        return log_objectives(self.contest.objective)

    @cached_property
    def _accuracies(self) -> Means:
        return accuracies(self.contest)

    @property
    def _shortfalls(self) -> Array:
        """Over the seeds that both have, if any; NaN if accuracies are not compared."""
        base, values, points = self.contest.baseline, self.contest.accuracy, self._accuracies.point
        if base is None:
            return np.full(len(points), np.nan)
        paired = Moments.of(values[base] - values).mean
        return np.where(np.isnan(paired), points[base] - points, paired)

    @property
    def _unknown(self) -> npt.NDArray[np.bool_]:
        """Whether further seeds may change anything, for each cell."""
        of_accuracy = ~np.isnan(self._shortfalls) & np.isnan(self._accuracies.error)
        return np.asarray((np.asarray(self.left) > 0) & (np.isnan(self._log_objectives.error) | of_accuracy))

    def _ends(self, means: Means, generator: np.random.Generator) -> Array:
        """Draws of the means over all seeds, shape (draws, cells)."""
        return replace(means, error=self._moves(means)).draws(generator, DRAWS)

    def _moves(self, means: Means) -> Array:
        """By how much the seeds to come move each mean, as the error of a t: 0 without any."""
        left = np.asarray(self.left)
        return np.where(left > 0, means.error * np.sqrt(left / np.maximum(means.n + left, 1)), 0.0)


def _upper(freedom: float) -> float:
    """The quantile SURE of t."""
    from scipy.special import stdtrit

    return float(stdtrit(min(freedom, NORMAL), SURE))
