"""Partial pooling of accuracies: cells with similar batches and recipes inform each other. Arrays in, draws out.

A cell's mean is its true accuracy with an error. True accuracies are normal around an unknown common mean, with a
covariance of three parts: one that all recipes share at a batch, one for each recipe (both smooth over the batch's
logarithm), and one for each cell. The sizes and length scales of the parts are unknown, so that the posterior is
averaged over a grid of them, weighted by their likelihood (Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006, sections 2.2 and 5.2; Gelman and Hill, "Data Analysis Using Regression and Multilevel/Hierarchical
Models", 2006, chapter 12, for partial pooling). If cells have nothing in common, the third part fits best, is large
compared with the errors, and leaves each mean where it is.

The cell that all others are compared with is there for its role: often it is the best tuned. Its own part has a wide
prior, because a baseline that is drawn towards the others' mean lets too many of them pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from orchestrator.statistics.intervals import Array

FEWEST_CELLS = 5  # fewer cells say nothing about their similarity

_MOST_FITTED = 120
"""Of more groups, only so many fit the covariance: the computation grows with the cube of their number."""

_LENGTHS = (1.5, 4.0)  # length scales of the smooth parts, in doublings of the batch

_SHARED, _OWN = (0.0, 0.3, 1.0, 3.0), (0.03, 0.1, 0.3, 1.0)
"""Standard deviations of the shared parts (of all recipes, and of one recipe) and of each cell's part, relative to the
standard deviation of the means."""

_SMOOTH = list(product(_LENGTHS, _SHARED, _SHARED))
"""The length scale of the smooth parts, and the sizes of that of all recipes and of each recipe's."""

_WIDE = 10.0  # standard deviation of the common mean in the same unit: nearly flat

_APART = (0.0, 1.0, 3.0)  # standard deviations in the same unit of what sets the baseline apart from other cells

_NEGLIGIBLE = 1e-3  # points of the grid with a smaller weight, relative to the largest, are not drawn from

_JITTER = 1e-6  # added to the variances of smooth parts, which are otherwise singular


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """The similarity of cells; arrays with one element per cell."""

    batch: Array  # the global batch size
    recipe: npt.NDArray[np.int_]  # the same number for cells that differ in GPUs and batch only

    def groups(self) -> tuple[Likeness, npt.NDArray[np.int_]]:
        """Return the distinct batches and recipes, and the group of each cell, which has its smooth parts."""
        groups, of_cell = np.unique(np.stack([self.batch, self.recipe]), axis=1, return_inverse=True)
        return Likeness(batch=groups[0], recipe=groups[1].astype(int)), of_cell.ravel()

    def weights(self) -> Array:
        """Return how alike any two cells are, from 0 to 1, shape (cells, cells); 0 on the diagonal.

        Half a doubling of the batch is a standard deviation: trainings collapse beyond some batch, not gradually.
        """
        logs = np.log2(np.where(self.batch > 0, self.batch, np.nan))
        near = np.nan_to_num(np.exp(-2 * np.subtract.outer(logs, logs) ** 2))
        near = near * np.where(np.equal.outer(self.recipe, self.recipe), 1.0, 0.5)
        np.fill_diagonal(near, 0.0)
        return np.asarray(near)

    def covariance(self, length: float, shared: float, of_recipe: float) -> Array:
        """Return the covariance of the smooth parts and the common mean, for means of standard deviation 1."""
        logs = np.log2(self.batch)
        smooth = np.exp(-0.5 * (np.subtract.outer(logs, logs) / length) ** 2)
        same = np.equal.outer(self.recipe, self.recipe)
        return np.asarray((shared**2 + of_recipe**2 * same) * smooth + _JITTER * np.eye(len(logs)) + _WIDE**2)


def pooled_draws(
    mean: Array,
    error: Array,
    freedom: npt.ArrayLike,
    likeness: Likeness,
    generator: np.random.Generator,
    draws: int,
    *,
    baseline: int | None = None,
) -> Array | None:
    """Return draws of the cells' true values, shape (draws, cells), from the means and their errors (0 or more).

    None with fewer than FEWEST_CELLS cells, without batches, or if all means are equal. Errors are those of t
    distributions with these freedoms, one for all cells or one for each.
    """
    count, spread = len(mean), float(np.std(mean, ddof=1)) if len(mean) > 1 else 0.0
    if count < FEWEST_CELLS or spread == 0 or not (likeness.batch > 0).all():
        return None
    unit = max(spread, float(np.median(error)))
    values, noise = (mean - mean.mean()) / unit, (error / unit) ** 2
    is_baseline = np.arange(count) == baseline
    groups, of_cell = likeness.groups()
    own_parts = [own**2 + apart**2 * is_baseline for own, apart in product(_OWN, _APART)]
    cells = [_Cells(values=values, noise=noise, own=own, of_cell=of_cell) for own in own_parts]
    weights = _weights(cells, groups)
    counts = generator.multinomial(draws, weights.ravel() / weights.sum()).reshape(weights.shape)
    parts = []
    for row in np.flatnonzero(counts.any(axis=1)).tolist():
        # Own parts share the factor of the smooth ones, which costs most.
        covariance = groups.covariance(*_SMOOTH[row])
        lower = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
        for column in np.flatnonzero(counts[row]).tolist():
            parts.append(cells[column].posterior(covariance, lower, generator, int(counts[row, column])))
    centres, deviations = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    deviations *= _of_t(np.broadcast_to(np.asarray(freedom, dtype=np.float64), (count,)), generator, draws)
    return np.asarray(mean.mean() + unit * generator.permutation(centres + deviations), dtype=np.float64)


def _weights(cells: Sequence[_Cells], groups: Likeness) -> Array:
    """Return the relative likelihoods of the grid, shape (sizes of smooth parts, of own parts); 0 if negligible."""
    fitted = np.arange(0, len(groups.batch), math.ceil(len(groups.batch) / _MOST_FITTED))
    few = Likeness(batch=groups.batch[fitted], recipe=groups.recipe[fitted])
    # Of shape (covariances, groups, groups): numpy factors all of them in one call.
    covariances = np.stack([few.covariance(*sizes) for sizes in _SMOOTH])
    fits = np.stack([of_part.log_likelihoods(covariances, fitted) for of_part in cells], axis=1)
    weights = np.exp(fits - fits.max())
    return np.where(weights < _NEGLIGIBLE, 0.0, weights)


def _of_t(freedom: Array, generator: np.random.Generator, draws: int) -> Array:
    """Return factors that make normal deviations those of t distributions with these freedoms, shape (draws, cells)."""
    factors, is_t = np.ones((draws, len(freedom))), np.isfinite(freedom) & (freedom > 0)
    factors[:, is_t] = np.sqrt(freedom[is_t] / generator.chisquare(freedom[is_t], (draws, int(is_t.sum()))))
    return factors


@dataclass(frozen=True, kw_only=True)
class _Cells:
    """The means of the cells: their smooth parts are those of their group, own parts and errors are independent."""

    values: Array
    noise: Array  # variances of the errors of the means
    own: Array  # variances of the parts that are a cell's alone
    of_cell: npt.NDArray[np.int_]  # the group of each cell

    @cached_property
    def variance(self) -> Array:
        """The variance of each group's weighted mean around what the group's cells share."""
        return np.asarray(1 / np.bincount(self.of_cell, 1 / (self.own + self.noise)))

    @cached_property
    def level(self) -> Array:
        """The weighted mean of each group."""
        return np.asarray(np.bincount(self.of_cell, self.values / (self.own + self.noise)) * self.variance)

    @cached_property
    def within(self) -> Array:
        """The log likelihood of the differences within each group, up to a constant."""
        total = self.own + self.noise
        apart = np.log(total) + (self.values - self.level[self.of_cell]) ** 2 / total
        return np.asarray((np.log(self.variance) - np.bincount(self.of_cell, apart)) / 2)

    def log_likelihoods(self, covariances: Array, groups: npt.NDArray[np.int_]) -> Array:
        """Return the log likelihood of these groups' cells by each of the covariances, up to a constant."""
        lower = np.linalg.cholesky(covariances + np.diag(self.variance[groups]))
        white = np.linalg.solve(lower, np.broadcast_to(self.level[groups][:, None], (*lower.shape[:2], 1)))[..., 0]
        determinants = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        return np.asarray(self.within[groups].sum() - 0.5 * (white**2).sum(axis=1) - determinants)

    def posterior(
        self, covariance: Array, lower: Array, generator: np.random.Generator, draws: int
    ) -> tuple[Array, Array]:
        """Return the mean of the cells' true values, and draws around it, both of shape (draws, cells).

        `lower` is the Cholesky factor of the groups' covariance.

        A draw of the groups is one of the prior less what its own noisy levels would tell of it (Matheron's rule).
        """
        gain = np.linalg.solve(covariance + np.diag(self.variance), covariance).T
        true = generator.standard_normal((draws, len(covariance))) @ lower.T
        seen = true + generator.standard_normal(true.shape) * np.sqrt(self.variance)
        part = self.own / (self.own + self.noise)
        centre = (gain @ self.level)[self.of_cell]
        deviations = ((true - seen @ gain.T)[:, self.of_cell]) * (1 - part)
        deviations += generator.standard_normal(deviations.shape) * np.sqrt(part * self.noise)
        return np.broadcast_to(centre + part * (self.values - centre), deviations.shape), deviations
