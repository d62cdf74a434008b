"""Scaling laws of throughput over GPUs, and the critical batch, fitted to measured trials: arrays in, values out.

X(N) = γN / (1 + α(N − 1) + βN(N − 1)): the Universal Scalability Law (Gunther, "A general theory of computational
scalability based on rational functions", arXiv:0808.1431, 2008), with contention α and coherency β. With β = 0 it is
Amdahl's law ("Validity of the single processor approach to achieving large scale computing capabilities", AFIPS 1967).
Both are fitted to log throughputs by least squares with α, β ≥ 0. Intervals hold the values whose residual sum of
squares is below RSS·(1 + t²/ν), the profile likelihood at Student's t (Bates and Watts, "Nonlinear Regression
Analysis", Wiley 1988, chapter 6): near the border of α, β ≥ 0 symmetric intervals would not cover.

Up to the critical batch, larger batches save steps: McCandlish et al., "An empirical model of large-batch training",
arXiv:1812.06162 (2018), section 2.3: with batch B the target takes S = S_min (1 + B_crit/B) steps, and so E = B·S =
E_min (1 + B/B_crit) samples. Targets a step, 1/S = B/E, grow with B as throughput grows with GPUs by Amdahl's law, with
α/(1 − α) = 1/B_crit, and are fitted so (`scaling_law`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.statistics.intervals import TAIL, Array, Interval, Moments, student

Whole = npt.NDArray[np.int64]

FEWEST_COUNTS = 3
"""A law needs this many different GPU counts."""

AMDAHL, USL = "amdahl", "usl"
_SHAPES = {AMDAHL: 1, USL: 2}
"""Number of shape parameters of each law: α, or α and β."""

_POINTS = {1: 1001, 2: 61}
"""Grid points along each shape parameter, by the number of parameters."""

_MOST_REFINEMENTS = 40

_HIGHEST = 10.0
"""Upper bound of α and β. With α = 1, more GPUs give no speed-up."""


class TooFewCountsError(ValueError):
    """The error for fewer GPU counts than a law needs."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A law with the trials it was fitted to."""

    law: str
    gpus: Array
    rates: Array
    """Samples per second, one value per trial."""
    groups: Whole
    """The group of each trial: the trials of one seed share a level."""
    gamma: float
    """Throughput of one GPU by the law, in samples per second."""
    shape: Array
    """α, and β of the USL."""
    squares: float
    """Residual sum of squares of the logarithms, within the groups."""

    @staticmethod
    def of(law: str, gpus: Array, rates: Array, seeds: Array | None = None) -> Fit:
        """Fit by least squares. Raises TooFewCountsError below FEWEST_COUNTS.

        If each of the `seeds` ran on several GPU counts, each seed has its own level: an effect of the seed, or of the
        hour, on all counts does not blur the shape and widens only the interval of the level.
        """
        known = (rates > 0) & (gpus > 0) & np.isfinite(rates)
        gpus, rates = gpus[known], rates[known]
        counts = len(np.unique(gpus))
        if counts < FEWEST_COUNTS:
            raise TooFewCountsError(f"a scaling law needs {FEWEST_COUNTS} GPU counts, and there are {counts}")
        groups = seed_groups(gpus, None if seeds is None else seeds[known])
        shape, squares = _best(gpus, rates, groups, _SHAPES[law])
        gamma = math.exp(float(_levels(_errors(gpus, rates, shape), groups).mean()))
        return Fit(law=law, gpus=gpus, rates=rates, groups=groups, gamma=gamma, shape=shape, squares=squares)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the residuals."""
        return len(self.gpus) - len(np.unique(self.groups)) - len(self.shape)

    @property
    def largest(self) -> float:
        """The largest GPU count measured; beyond it the law extrapolates."""
        return float(self.gpus.max())

    def at(self, gpus: float) -> Interval:
        """Return the mean throughput on this many GPUs, in samples per second; no interval without degrees of freedom.

        With several seeds, the errors of level and shape are independent and add in quadrature.
        """
        there, one = np.array([gpus]), np.ones(1)
        levels = _levels(_errors(self.gpus, self.rates, self.shape), self.groups)
        point = float(levels.mean() - _errors(there, one, self.shape)[0])
        if self.freedom < 1:
            return _interval(point, math.nan, math.nan).map(np.exp)
        shapes, room = self._region
        means = np.mean([_errors(n, rate, shapes.T) for n, rate in zip(self.gpus, self.rates, strict=True)], axis=0)
        found = means - _errors(gpus, 1.0, shapes.T)
        if len(levels) == 1:
            reach = np.sqrt(room / len(self.gpus))
            return _interval(point, float((found - reach).min()), float((found + reach).max())).map(np.exp)
        level, middle = student(Moments.of(levels)), found[0]
        half = float(level.hi - level.point)
        below, above = math.hypot(middle - found.min(), half), math.hypot(found.max() - middle, half)
        return _interval(point, point - below, point + above).map(np.exp)

    def shape_interval(self, which: int) -> Interval:
        """Return the interval of α (0) or β (1)."""
        point = float(self.shape[which])
        if self.freedom < 1:
            return _interval(point, math.nan, math.nan)
        values = self._region[0][:, which]
        return _interval(point, float(values.min()), float(values.max()))

    @cached_property
    def _region(self) -> tuple[Array, Array]:
        """The shapes within the bound, the best one first, and the distances of their sums of squares to the bound."""
        from scipy.special import stdtrit

        bound = max(self.squares, 1e-12) * (1 + float(stdtrit(self.freedom, TAIL)) ** 2 / self.freedom)
        lo, hi = self.shape * 0.5, self.shape * 1.5 + 1e-3
        for _ in range(_MOST_REFINEMENTS):
            grid = _grid(lo, hi)
            squares = self._squares(grid)
            inside = np.vstack([self.shape, grid[squares <= bound]])
            least, most = inside.min(axis=0), inside.max(axis=0)
            width = hi - lo
            low, high = (least <= lo) & (lo > 0), (most >= hi) & (hi < _HIGHEST)
            if not low.any() and not high.any() and (most - least > width / 3).all():
                break
            margin = 0.1 * (most - least) + 1e-9
            lo = np.maximum(0.0, np.where(low, lo - 2 * width, least - margin))
            hi = np.minimum(_HIGHEST, np.where(high, hi + 2 * width, most + margin))
        allowed = squares <= bound
        shapes = np.vstack([self.shape, grid[allowed]])
        return shapes, np.maximum(0.0, bound - np.append(self.squares, squares[allowed]))

    def _squares(self, shapes: Array) -> Array:
        """Return residual sums of squares within the groups, one for each shape."""
        errors = np.stack([_errors(n, rate, shapes.T) for n, rate in zip(self.gpus, self.rates, strict=True)])
        total = np.zeros(len(shapes))
        for group in np.unique(self.groups):
            own = errors[self.groups == group]
            total += ((own - own.mean(axis=0)) ** 2).sum(axis=0)
        return total


def _grid(lo: Array, hi: Array) -> Array:
    """Return the grid points of a box, one per row."""
    axes = [np.linspace(first, last, _POINTS[len(lo)]) for first, last in zip(lo, hi, strict=True)]
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes)], axis=1)


def _interval(point: float, lo: float, hi: float) -> Interval:
    return Interval(point=np.asarray(point), lo=np.asarray(lo), hi=np.asarray(hi))


def seed_groups(gpus: Array, seeds: Array | None) -> Whole:
    """Return 0, 1, … by seed if several seeds ran on several GPU counts each; else one group for all trials."""
    if seeds is None:
        return np.zeros(len(gpus), dtype=np.int64)
    numbers = np.asarray(np.unique(seeds, return_inverse=True)[1], dtype=np.int64)
    counts = [len(np.unique(gpus[numbers == number])) for number in range(numbers.max() + 1)]
    return numbers if len(counts) > 1 and min(counts) > 1 else np.zeros(len(gpus), dtype=np.int64)


def _errors(gpus: Any, rates: Any, shape: Array) -> Array:
    """Return log rates minus those of the law with γ = 1; the rows of `shape` are α and β of many shapes."""
    alpha, beta = shape[0], shape[1] if len(shape) > 1 else 0.0
    return np.asarray(np.log(rates) - np.log(gpus) + np.log(1 + alpha * (gpus - 1) + beta * gpus * (gpus - 1)))


def _levels(errors: Array, groups: Whole) -> Array:
    """Return the mean of each group."""
    return np.asarray(np.bincount(groups, errors) / np.bincount(groups), dtype=np.float64)


def _best(gpus: Array, rates: Array, groups: Whole, size: int) -> tuple[Array, float]:
    """Return the least-squares shape within the groups, and its sum of squares."""
    from scipy.optimize import least_squares

    def centred(shape: Array) -> Array:
        errors = _errors(gpus, rates, shape)
        return np.asarray(errors - _levels(errors, groups)[groups])

    found = least_squares(centred, [0.05, 0.001][:size], bounds=(0, _HIGHEST), x_scale=[0.1, 0.01][:size], xtol=1e-10)
    return np.asarray(found.x), float(2 * found.cost)


def critical_batch(batches: Array, samples: Array) -> Interval:
    """Return B_crit in samples, from the global batches of trials and their samples to the target.

    The upper end is inf if the data agree with a number of samples that does not grow. Raises TooFewCountsError for
    fewer than three batch sizes.
    """
    known = (batches > 0) & (samples > 0) & np.isfinite(batches) & np.isfinite(samples)
    if not known.any():
        raise TooFewCountsError("no trial reached the target")
    batches, samples = batches[known], samples[known]
    unit = float(np.min(batches))
    fit = Fit.of(AMDAHL, batches / unit, batches / samples)
    alpha = fit.shape_interval(0)
    point, hi, lo = (  # with α of 1 or more, even the smallest batch is far beyond B_crit
        np.inf if each <= 1e-9 else max(0.0, unit * (1 - each) / each)
        for each in (float(fit.shape[0]), float(alpha.lo), float(alpha.hi))
    )
    return _interval(point, lo, hi)
