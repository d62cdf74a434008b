"""Shrinks the variances of many small samples towards what all of them have in common.

With two seeds a cell, Student's t has one degree of freedom and an interval 12.7 standard errors wide. The cells of a
sweep are alike, though, and together they tell how much seeds vary. Smyth, "Linear models and empirical Bayes methods
for assessing differential expression", Statistical Applications in Genetics and Molecular Biology 3 (2004), takes the
variances of the cells to be drawn from a scaled inverse χ² distribution with d₀ degrees of freedom around s₀², and
estimates both from the spread of the sample variances: where the cells vary alike d₀ is large, and each borrows from
all; where they do not it is near 0, and each stands by itself. The moderated t then has d₀ + d degrees of freedom.
"""

from __future__ import annotations

import numpy as np

from orchestrator.statistics.means import Array

FEWEST_CELLS = 3
"""Below so many variances, their spread says nothing about d₀."""

_SMALLEST = 1e-5
"""Variances below this part of their median count as so large: the logarithm of 0 would swallow all others."""


def shrunken(variance: Array, freedom: Array) -> tuple[Array, Array]:
    """Posterior variances and their degrees of freedom, which are infinite where all cells vary alike.

    NaN variances, and freedoms below 1, take the common variance where there is one: with one seed a cell borrows all.
    Left as they are where fewer than three cells have a variance of their own, or most of them are 0.
    """
    own = (freedom >= 1) & np.isfinite(variance)
    if own.sum() < FEWEST_CELLS or np.median(variance[own]) <= 0:
        return variance, freedom
    common, prior = _prior(variance[own], freedom[own])
    variance, freedom = np.where(own, variance, 0.0), np.where(own, freedom, 0.0)
    if np.isinf(prior):
        return np.full_like(variance, common), np.full_like(freedom, np.inf)
    return (prior * common + freedom * variance) / (prior + freedom), prior + freedom


def _prior(variance: Array, freedom: Array) -> tuple[float, float]:
    """s₀² and d₀, from mean and variance of log s² (Smyth 2004, section 6.2)."""
    from scipy.special import digamma, polygamma  # takes longer to import than most callers have to wait for

    logs = np.log(np.maximum(variance, _SMALLEST * np.median(variance)))
    errors = logs - digamma(freedom / 2) + np.log(freedom / 2)
    excess = float(errors.var(ddof=1) - polygamma(1, freedom / 2).mean())
    if excess <= 0:
        return float((variance * freedom).sum() / freedom.sum()), np.inf
    prior = 2 * _inverse_trigamma(excess)
    return float(np.exp(errors.mean() + digamma(prior / 2) - np.log(prior / 2))), prior


def _inverse_trigamma(value: float) -> float:
    """Where ψ′ takes this value, by Newton's method on 1/ψ′, which is convex (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    found = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, found))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, found))
        found += step
        if abs(step) < 1e-10 * found:
            break
    return found
