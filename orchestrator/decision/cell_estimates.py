"""The cells that compete: their measurements, and estimates of their true objectives and accuracies.

Objectives are compared by their logarithms, accuracies by their differences from the baseline's. A cell's objective has
a moderated t (a flat prior on the means); its accuracy is pooled over cells with similar batches and recipes
(`statistics.pooling`). A seed's common effect on all cells is removed first; then the remaining variances inform each
other (`statistics.variances`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from orchestrator.statistics import margins
from orchestrator.statistics.collapses import Collapses, share_draws
from orchestrator.statistics.intervals import Array, Interval, Moments, least_error, logs, student_quantile
from orchestrator.statistics.pooling import Likeness, pooled_draws
from orchestrator.statistics.variances import moderated

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
class Measurements:
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
    left_out: npt.NDArray[np.bool_] | None = None
    """Cells whose further seeds a rule of the sweep left out, because they would not change the choice; None: none."""
    timing_group: npt.NDArray[np.intp] | None = None
    """An equal number for cells whose steps take equally long, so that they may share timings; None: none do."""
    cost: Array | None = None
    """Device-hours of a trial of each cell, times any constant price; NaN is unknown. None if all cells cost alike."""

    @property
    def log_cost(self) -> Array:
        """Logarithms of the costs, one per cell; NaN if unknown."""
        return np.full(len(self.objective), np.nan) if self.cost is None else logs(self.cost)

    def excess(self, loss: margins.Losses) -> margins.Losses:
        """Return by how much each loss of accuracy exceeds the margin: at most 0 within it, NaN if unknown."""
        return margins.excess(loss, self.margin)

    @property
    def uncollapsed(self) -> Array:
        """The accuracies without collapsed ones."""
        return self.accuracy if self.collapsed is None else np.where(self.collapsed, np.nan, self.accuracy)

    @property
    def collapses(self) -> Collapses:
        """The losses by collapsed seeds."""
        own, uncollapsed = Moments.of(self.accuracy), Moments.of(self.uncollapsed)
        if self.collapsed is None:
            none = np.zeros_like(own.n)
            return Collapses(hits=none, n=own.n, drop=none, below=none, likeness=self.likeness)
        hits = self.collapsed.sum(axis=1).astype(np.float64)
        missing = (self.collapsed & np.isnan(self.accuracy)).sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            drop = np.where(hits > 0, (uncollapsed.mean - own.mean) * own.n / hits, 0.0)
        # A seed without an accuracy may be worse than any other, so that its drop has no bound.
        drop = np.where(missing > 0, np.inf, drop)
        below = np.zeros_like(drop) if self.baseline is None else uncollapsed.mean[self.baseline] - uncollapsed.mean
        return Collapses(hits=hits, n=own.n + missing, drop=drop, below=below, likeness=self.likeness)


@dataclass(frozen=True, kw_only=True)
class Means:
    """Estimates of each cell's true value; draws are `point + error · t(freedom)`, a NaN error is unknown."""

    point: Array
    n: Array
    error: Array
    freedom: Array
    source: npt.NDArray[np.intp] | None = None
    """The row whose measurements each cell's estimate is from: equal for cells that share them; None: each its own."""

    def intervals(self) -> Interval:
        """Return 95% intervals, one per cell."""
        half = student_quantile(np.minimum(self.freedom, NORMAL)) * self.error
        return Interval(point=self.point, lo=self.point - half, hi=self.point + half)

    def minus(self, row: int) -> Means:
        """Return the difference of each cell from one of them, whose error enters all differences.

        A cell with the same measurements as that one has no difference.
        """
        error = np.hypot(self.error, self.error[row])
        if self.source is not None:
            error = np.where((self.source == self.source[row]) & ~np.isnan(error), 0.0, error)
        return Means(
            point=self.point - self.point[row],
            n=np.minimum(self.n, self.n[row]),
            error=error,
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
        chances = generator.standard_t(freedom, shape)
        if self.source is not None:
            chances = chances[:, self.source]
        return self.point + np.where(known, self.error, 0.0) * chances


def log_objectives(objective: Array, timing_group: npt.NDArray[np.intp] | None = None) -> Means:
    """Estimate the logarithms of the cells' objectives. Cells that share their timings have one estimate.

    They have the same number in `timing_group`; None: no cell shares any.
    """
    values = logs(objective)
    source = np.arange(len(values)) if timing_group is None else _sources(values, timing_group)
    own = np.unique(source)
    means = _means(values[own])
    of_source = np.searchsorted(own, source)
    return Means(
        point=means.point[of_source],
        n=means.n[of_source],
        error=means.error[of_source],
        freedom=means.freedom[of_source],
        source=source,
    )


def _sources(values: Array, timing_group: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return for each row the one of its group with the most seeds that has all its values."""
    # Rules at one batch take the same steps, so that the sweep times one of them for all.
    source = np.arange(len(values))
    known = ~np.isnan(values)
    own: list[int] = []
    for row in np.argsort(-known.sum(axis=1), kind="stable").tolist():
        has_values = ((values[own] == values[row]) | ~known[row]).all(axis=1) & known[row].any()
        is_same = has_values & (timing_group[own] == timing_group[row])
        if is_same.any():
            source[row] = own[int(is_same.argmax())]
        else:
            own.append(row)
    return source


def accuracies(measurements: Measurements) -> Means:
    """Estimate the cells' accuracies without collapsed seeds, independent of the baseline's."""
    # Seeds that are equal by chance say little: a share of few samples varies by more.
    share = np.clip(Moments.of(measurements.uncollapsed).mean, 0.0, 1.0)
    return _means(measurements.uncollapsed, _of_spread(measurements), share * (1 - share) / measurements.samples)


def _of_spread(measurements: Measurements) -> Array | None:
    """Return what the spread of accuracies may depend on, shape (cells, 2): the batch, and the loss in margins."""
    if measurements.likeness is None or not (measurements.likeness.batch > 0).all():
        return None
    mean = Moments.of(measurements.uncollapsed).mean
    if np.isnan(mean).all():
        return None
    loss = (np.nanmax(mean) - mean) / measurements.margin
    return np.column_stack([_PER_DOUBLING * np.log2(measurements.likeness.batch), np.log1p(loss)])


_PER_DOUBLING = 0.7
"""A plausible change of the log variance with each doubling of the batch: the spread doubles with two doublings."""


def score_differences(measurements: Measurements) -> Means:
    """Estimate each cell's accuracy minus the baseline's, whose error enters all differences.

    Errors are at least those that the number of samples implies: shares of few samples are equal by chance.
    """
    accuracy, base = measurements.uncollapsed, measurements.baseline
    if base is None or np.isnan(accuracy[base]).all():
        nothing = np.full(len(accuracy), np.nan)
        return Means(point=nothing, n=np.zeros(len(accuracy)), error=nothing, freedom=nothing)
    difference = accuracies(measurements).minus(base)
    differences = Moments.of(accuracy - accuracy[base])
    # Two rules may describe the same training, as all do at the reference batch: equal figures for every seed.
    equivalent_cells = (differences.n >= 2) & (differences.mean == 0) & (differences.variance == 0)
    if measurements.likeness:
        equivalent_cells &= measurements.likeness.batch == measurements.likeness.batch[base]
    itself = equivalent_cells | (np.arange(len(accuracy)) == base)
    apart = np.where(
        difference.point == 0, np.finfo(float).tiny, difference.point
    )  # `least_error` takes 0 for the same training
    error = np.maximum(difference.error, least_error(apart, measurements.samples * difference.n))
    return replace(difference, error=np.where(itself, 0.0, error), freedom=np.where(itself, np.inf, difference.freedom))


def pooled_differences(
    measurements: Measurements, difference: Means, generator: np.random.Generator, draws: int
) -> Array | None:
    """Return draws pooled over similar cells, shape (draws, cells); None if pooling is impossible."""
    compared = ~np.isnan(difference.point)
    if measurements.likeness is None or measurements.baseline is None or np.isnan(difference.error[compared]).any():
        return None
    own = accuracies(measurements)
    alike = Likeness(batch=measurements.likeness.batch[compared], recipe=measurements.likeness.recipe[compared])
    baseline = int(compared[: measurements.baseline].sum())
    error = np.sqrt(np.maximum(own.error**2, difference.error**2 - own.error[measurements.baseline] ** 2))
    # Few data must not decide: before any measurement, a cell is expected halfway to the margin.
    expected = margins.EXPECTED * measurements.margin
    ahead = np.where(np.arange(len(compared)) == measurements.baseline, expected, 0.0)
    point = (own.point - ahead)[compared]
    truths = pooled_draws(point, error[compared], own.freedom[compared], alike, generator, draws, baseline=baseline)
    if truths is None:
        return None
    drawn = np.full((draws, len(compared)), np.nan)
    drawn[:, compared] = truths
    itself = compared & (difference.error == 0) & (difference.point == 0)
    return np.where(itself, 0.0, drawn - drawn[:, [measurements.baseline]] - expected)


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
