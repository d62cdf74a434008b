"""Variances of cells that inform each other: arrays in, arrays out.

With two seeds per cell the interval is ±12.7 standard errors. The cells of a sweep are similar, so that their variances
inform each other. Smyth, "Linear models and empirical Bayes methods for assessing differential expression", Statistical
Applications in Genetics and Molecular Biology 3 (2004), models the cells' variances as draws from a scaled inverse χ²
distribution with d₀ degrees of freedom around s₀², and estimates both from the spread of the sample variances. If all
cells vary alike, d₀ is large and each cell borrows from all; otherwise d₀ is near 0. The moderated t has d₀ + d degrees
of freedom.

Spreads often grow with the batch or the loss. Therefore s₀² follows a trend (Sartor et al., "Intensity-based
hierarchical Bayes method improves testing for differentially expressed genes", BMC Bioinformatics 7, 2006), whose
slopes have a normal prior. Few variances say little about the trend and about how unlike the cells are: both
uncertainties lower d₀, so that small sweeps borrow less.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from orchestrator.statistics.intervals import Array

FEWEST_CELLS = 3  # with fewer variances, their spread says nothing about d₀

_SMALLEST = 1e-5  # variances are at least this part of their median: the logarithm of 0 would dominate all others

_SLOPE = 1.0  # standard deviation of the prior of a slope: of the log variance, for a unit of the covariate

_UNLIKE, _GUESSES = 0.05, 2.0
"""A guess of how unlike cells are, as a variance of log σ², and the number of cells that it is worth."""

_ROUNDS = 4  # the trend and the variance around it are estimated in turn; they settle in a few rounds


def moderated(
    variance: Array, freedom: Array, covariates: Array | None = None, floor: Array | None = None
) -> tuple[Array, Array]:
    """Return posterior variances and their degrees of freedom, at most those of all cells together.

    `covariates` of shape (cells, k) are what the variances may depend on, in units in which a slope of 1 is plausible.
    `floor` has the variances that are plausible at least, such as those of shares of few samples: no cell has less, as
    far as the trend is as large. NaN variances, and freedoms below 1, take the trend's variance: a cell with one seed
    borrows all of it. The variances stay as they are if fewer than FEWEST_CELLS cells have one, or if most of them are
    0.
    """
    own = (freedom >= 1) & np.isfinite(variance)
    if own.sum() < FEWEST_CELLS or np.median(variance[own]) <= 0:
        return variance, freedom
    design = np.ones((len(variance), 1)) if covariates is None else _design(covariates, own)
    trend, unlike = _trend(variance[own], freedom[own], design, own)
    from scipy.special import digamma  # slow to import

    prior = 2 * _inverse_trigamma(unlike)
    common = np.exp(trend + digamma(prior / 2) - np.log(prior / 2))
    variance, freedom = np.where(own, variance, 0.0), np.where(own, freedom, 0.0)
    posterior = (prior * common + freedom * variance) / (prior + freedom)
    if floor is not None:
        posterior = np.fmax(posterior, np.fmin(floor, common))
    return posterior, np.minimum(prior + freedom, freedom.sum())


def _design(covariates: Array, own: npt.NDArray[np.bool_]) -> Array:
    """Return a column of ones and the centred covariates; unknown ones are at the centre."""
    centred = np.nan_to_num(covariates - np.nanmean(covariates[own], axis=0))
    return np.column_stack([np.ones(len(covariates)), centred])


def _trend(variance: Array, freedom: Array, design: Array, own: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return the mean and the variance of each cell's log σ², before its own sample is looked at.

    The mean of log s² is log σ² + ψ(d/2) − log(d/2), its variance ψ′(d/2) (Smyth 2004, section 6.2).
    """
    from scipy.special import digamma, polygamma  # slow to import

    logs = np.log(np.maximum(variance, _SMALLEST * np.median(variance)))
    logs = logs - digamma(freedom / 2) + np.log(freedom / 2)
    by_chance = polygamma(1, freedom / 2)
    # The level has a flat prior, slopes have a normal one.
    penalty = np.diag([1e-9, *[_SLOPE**-2] * (design.shape[1] - 1)])
    unlike = _UNLIKE
    for _ in range(_ROUNDS):
        weights = 1 / (by_chance + unlike)
        covariance = np.linalg.inv(design[own].T @ (weights[:, None] * design[own]) + penalty)
        slopes = covariance @ (design[own].T @ (weights * logs))
        leverage = np.einsum("ij,jk,ik->i", design, covariance, design)
        # The residuals of fitted cells are smaller than those of new ones, by their leverage.
        squares = (logs - design[own] @ slopes) ** 2 + leverage[own]
        excess = (squares - by_chance).sum() + _GUESSES * _UNLIKE
        unlike = max(0.0, float(excess / (len(logs) + _GUESSES)))
    return design @ slopes, unlike + leverage


def _inverse_trigamma(value: Array) -> Array:
    """Solve ψ′(x) = value by Newton's method on 1/ψ′, which is convex (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    root = 0.5 + 1 / value
    for _ in range(50):
        trigamma = polygamma(1, root)
        step = trigamma * (1 - trigamma / value) / polygamma(2, root)
        root = root + step
        if np.all(np.abs(step) < 1e-10 * root):
            break
    return np.asarray(root)
