"""Partial pooling of accuracies: cells with similar batches and recipes inform each other. Arrays in, draws out.

A cell's mean is its true accuracy with an error. True accuracies are normal around an unknown common mean, with a
covariance of three parts: one that all recipes share at a batch, one for each recipe (both smooth over the batch's
logarithm), and one for each cell. The sizes and length scales of the parts are unknown, so that the posterior is
averaged over a grid of them, weighted by their likelihood (Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006, sections 2.2 and 5.2; Gelman and Hill, "Data Analysis Using Regression and Multilevel/Hierarchical
Models", 2006, chapter 12, for partial pooling). If cells have nothing in common, the third part fits best, is large
compared with the errors, and leaves each mean where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from orchestrator.statistics.intervals import Array

FEWEST_CELLS = 5
"""Fewer cells say nothing about their similarity."""

MOST_CELLS = 200
"""More cells are not pooled: the computation grows with the cube of their number."""

_LENGTHS = (1.5, 4.0)
"""Length scales of the smooth parts, in doublings of the batch."""

_SHARED, _OWN = (0.0, 0.3, 1.0, 3.0), (0.03, 0.1, 0.3, 1.0)
"""Standard deviations of the shared parts (of all recipes, and of one recipe) and of each cell's part, relative to the
standard deviation of the means."""

_WIDE = 10.0
"""Standard deviation of the common mean in the same unit: nearly flat."""


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """The similarity of cells; arrays with one element per cell."""

    batch: Array
    """The global batch size."""
    recipe: npt.NDArray[np.int_]
    """The same number for cells that differ in GPUs and batch only."""

    def covariances(self) -> Iterator[Array]:
        """Yield every covariance of the grid, for means of standard deviation 1."""
        doublings = np.abs(np.subtract.outer(np.log2(self.batch), np.log2(self.batch)))
        same = np.equal.outer(self.recipe, self.recipe)
        for length, shared, of_recipe, own in product(_LENGTHS, _SHARED, _SHARED, _OWN):
            smooth = np.exp(-0.5 * (doublings / length) ** 2)
            yield shared**2 * smooth + of_recipe**2 * smooth * same + own**2 * np.eye(len(same))


def pooled_draws(
    mean: Array, error: Array, freedom: float, likeness: Likeness, generator: np.random.Generator, draws: int
) -> Array | None:
    """Return draws of the cells' true values, shape (draws, cells), from the means and their errors (0 or more).

    None with fewer than FEWEST_CELLS or more than MOST_CELLS cells, without batches, or if all means are equal. Errors
    are those of a t distribution with this freedom.
    """
    count, spread = len(mean), float(np.std(mean, ddof=1)) if len(mean) > 1 else 0.0
    if not FEWEST_CELLS <= count <= MOST_CELLS or spread == 0 or not (likeness.batch > 0).all():
        return None
    unit = max(spread, float(np.median(error)))
    values, noise = (mean - mean.mean()) / unit, np.diag((error / unit) ** 2)
    grid = [covariance + _WIDE**2 for covariance in likeness.covariances()]
    fits = np.array([_log_likelihood(values, prior + noise) for prior in grid])
    weights = np.exp(fits - fits.max())
    parts = [
        _posterior(values, prior, noise, generator, drawn)
        for prior, drawn in zip(grid, generator.multinomial(draws, weights / weights.sum()), strict=True)
        if drawn
    ]
    centres, deviations = (np.concatenate(each) for each in zip(*parts, strict=True))
    if np.isfinite(freedom):
        deviations = deviations * np.sqrt(freedom / generator.chisquare(freedom, (draws, 1)))
    return np.asarray(mean.mean() + unit * generator.permutation(centres + deviations), dtype=np.float64)


def _log_likelihood(values: Array, covariance: Array) -> float:
    """Return the log likelihood up to a constant."""
    lower = np.linalg.cholesky(covariance)
    white = np.linalg.solve(lower, values)
    return float(-0.5 * white @ white - np.log(np.diagonal(lower)).sum())


def _posterior(
    values: Array, prior: Array, noise: Array, generator: np.random.Generator, draws: int
) -> tuple[Array, Array]:
    """Return the mean of the true values, and draws around it, both of shape (draws, cells)."""
    gain = np.linalg.solve(prior + noise, prior).T
    variance = gain @ noise  # prior − gain · prior, without subtracting large numbers
    lengths, axes = np.linalg.eigh((variance + variance.T) / 2)
    # The symmetric root is unique; eigenvectors may differ between machines by rounding.
    root = (axes * np.sqrt(np.maximum(lengths, 0.0))) @ axes.T
    deviations = generator.standard_normal((draws, len(values))) @ root
    return np.broadcast_to(gain @ values, deviations.shape), deviations
