"""The critical batch: up to it, larger batches save steps (McCandlish et al., arXiv:1812.06162, 2018, section 2.3).

With a global batch B a target takes E = E_min (1 + B / B_crit) samples. u = 1 / B_crit is fitted to log E by least
squares with u ≥ 0. Intervals hold the values whose residual sum of squares is below RSS·(1 + t²/ν), the profile
likelihood at Student's t (Bates and Watts, "Nonlinear Regression Analysis", Wiley 1988, chapter 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.statistics.intervals import UPPER_90, UPPER_95, Array, Interval, student_quantile

BATCHES = 3  # the fit needs this many different batches
_GRID = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 27_632)])
"""Values of u in units of 1 / the smallest batch: 0.1% apart."""
_NAMED = np.append(_GRID[:-1], np.inf)  # the same, where the last value stands for all larger ones


class TooFewBatchesError(ValueError):
    """The error for fewer batches than the fit needs."""


@dataclass(frozen=True, kw_only=True)
class BatchEconomy:
    """The samples that a target takes, by global batch."""

    unit: float  # the smallest batch
    levels: Array  # mean log E_min on the grid of u
    squares: Array  # residual sum of squares on the grid of u
    trials: int

    @staticmethod
    def of(batches: Array, samples: Array) -> BatchEconomy:
        """Fit to the global batches of trials and their samples to the target. Raises TooFewBatchesError."""
        known = (batches > 0) & (samples > 0) & np.isfinite(batches) & np.isfinite(samples)
        batches, samples = batches[known], samples[known]
        sizes = len(np.unique(batches))
        if sizes < BATCHES:
            raise TooFewBatchesError(f"{BATCHES} batches that reach the target are needed, and there are {sizes}")
        unit = float(batches.min())
        errors = np.log(samples) - np.log1p(_GRID[:, None] * batches / unit)
        levels = errors.mean(axis=1)
        squares = ((errors - levels[:, None]) ** 2).sum(axis=1)
        return BatchEconomy(unit=unit, levels=levels, squares=squares, trials=len(batches))

    def _inside(self, upper: float) -> Array:
        """Return which values of u an interval with this upper quantile holds; none without degrees of freedom."""
        freedom = self.trials - 2
        bound = max(float(self.squares.min()), 1e-12) * (1 + float(student_quantile(freedom, upper)) ** 2 / freedom)
        return np.asarray(self.squares <= bound)

    def critical_batch(self) -> Interval:
        """Return B_crit in samples, with a 95% interval; infinite ends if the samples need not grow."""
        allowed = _NAMED[self._inside(UPPER_95)]
        with np.errstate(divide="ignore"):
            point, hi, lo = self.unit / np.array([_NAMED[self.squares.argmin()], allowed.min(), allowed.max()])
        return Interval(point=point, lo=lo, hi=hi)

    def samples_at(self, batch: float) -> Interval:
        """Return the samples to the target at this batch, with a 90% interval."""
        logs = self.levels + np.log1p(_GRID * batch / self.unit)
        likely, allowed = int(self.squares.argmin()), logs[self._inside(UPPER_90)]
        freedom = self.trials - 2
        reach = float(student_quantile(freedom, UPPER_90)) * math.sqrt(
            float(self.squares.min()) / freedom / self.trials
        )
        ends = np.exp([logs[likely], allowed.min() - reach, allowed.max() + reach])
        return Interval(point=ends[0], lo=ends[1], hi=ends[2])
