"""Which cells a sweep may still choose while it runs, for `sweep.phases`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from orchestrator.decision.cell_estimates import NORMAL, Means, Measurements, accuracies, log_objectives
from orchestrator.decision.choice import within_tie
from orchestrator.decision.thresholds import FEWEST_SEEDS, SURE
from orchestrator.statistics import margins
from orchestrator.statistics.intervals import Array, Moments, student_quantile

DRAWS = 4_000  # random draws of the end of a sweep; probabilities are accurate to ±1%

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
        cell with the least cost, and of those the most accurate one. This simplifies the rule of `choose`, which
        also asks how sure the tie and the accuracies are. Accuracies are not pooled over similar cells: pooling
        gave the same answers at the same cost (docs/results/batch_scaling/phases).
        """
        generator = np.random.default_rng(0)
        # Random draws of the means over all seeds, shape (draws, cells).
        level = self._at_the_end(self._log_objectives).draws(generator, DRAWS)
        accuracy = self._at_the_end(self._accuracies).draws(generator, DRAWS)
        base = self.measurements.baseline
        within = np.full(level.shape, True)
        if base is not None:
            # NaN compares as false: a cell without an accuracy misses nothing.
            within = ~(self.measurements.excess(accuracy[:, [base]] - accuracy) > 0)
        # In each draw the cell that the rule chooses, and how often that is each of them.
        tied = within_tie(level, within)
        cheapest = within_tie(np.nan_to_num(self.measurements.log_cost), tied)
        chosen = np.where(cheapest, np.nan_to_num(accuracy), -np.inf).argmax(axis=1)
        counts = np.bincount(chosen[cheapest.any(axis=1)], minlength=len(self.seeds_left))
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
        return log_objectives(self.measurements.objective, self.measurements.timing_group)

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
