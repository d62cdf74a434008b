"""How far apart two loss curves are. Pure: arrays in, numbers out.

The distance of two curves is the mean of |ln a − ln b| over the positions of either that lie within the range of both,
logarithms linear between positions: 0.05 means that losses differ by 5% on average. Between trials of the same seed,
which start from the same weights, it tells what the change from one cell to the other does, and chance; between
different seeds of one cell it tells what chance does alone, and is the yardstick for the first: cells of one
distribution of curves have the same mean distance between as within them, others a larger one between them (Székely and
Rizzo, "Energy statistics", Journal of Statistical Planning and Inference 143, 2013; pairs of a seed can be nearer).

Distances between the seeds of a cell share seeds, and are fewer independent figures than there are. Their mean is a
U-statistic, of which each seed has the jackknife's pseudo-value n·U − (n − 1)·U without it: the mean of these is U, and
their spread that of U (Arvesen, "Jackknifing U-statistics", Annals of Mathematical Statistics 40, 1969).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.statistics.intervals import Array, Interval, logs, mean_interval

FEWEST = 5
"""Positions of either curve in the range of both: fewer are points, and no curve."""

FEWEST_SEEDS = 3
"""Of a cell, for the spread of the distance between them."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A loss curve: ascending positions and the logarithms of the losses there, arrays of one shape."""

    at: Array
    log_loss: Array

    @staticmethod
    def of(at: npt.ArrayLike, loss: npt.ArrayLike) -> Curve:
        """Of positions in any order, without losses that are not finite or not above 0; the last of each position."""
        places, values = np.asarray(at, dtype=np.float64), logs(loss)
        known = np.isfinite(places) & np.isfinite(values)
        places, values = places[known][::-1], values[known][::-1]
        ascending, first = np.unique(places, return_index=True)
        return Curve(at=ascending, log_loss=values[first])


def distance(one: Curve | None, other: Curve | None) -> float:
    """NaN where either is missing, or has fewer than FEWEST positions in the range of both."""
    if one is None or other is None or not (len(one.at) and len(other.at)):
        return float("nan")
    first, last = max(one.at[0], other.at[0]), min(one.at[-1], other.at[-1])
    inside = [curve.at[(curve.at >= first) & (curve.at <= last)] for curve in (one, other)]
    if min(map(len, inside)) < FEWEST:
        return float("nan")
    at = np.union1d(*inside)
    one_there, other_there = (np.interp(at, curve.at, curve.log_loss) for curve in (one, other))
    return float(np.abs(one_there - other_there).mean())


def distances(ones: Sequence[Curve | None], others: Sequence[Curve | None]) -> Array:
    """Of two cells' curves, in the order of the same seeds, the distance of each pair, shape (seeds,)."""
    return np.array([distance(one, other) for one, other in zip(ones, others, strict=True)], dtype=np.float64)


def between_cells(ones: Sequence[Curve | None], others: Sequence[Curve | None]) -> Interval:
    """The mean distance of pairs with the same seed, and its interval; arrays of one element."""
    return mean_interval(distances(ones, others)[None, :])


def between_seeds(curves: Sequence[Curve | None]) -> float:
    """The mean distance between the different seeds of one cell; NaN for fewer than two."""
    pairs = _pairs(curves)
    known = pairs[~np.isnan(pairs)]
    return float(known.mean()) if len(known) else float("nan")


def pseudo_values(curves: Sequence[Curve | None]) -> Array:
    """Of `between_seeds` for each seed, shape (seeds,): NaN where a seed has no curve, or fewer than FEWEST_SEEDS have.

    With the mean distance d of a seed to the n − 1 others, n·U − (n − 1)·U without it is (2(n − 1)·d − n·U) / (n − 2).
    """
    pairs = _pairs(curves)
    has_any = ~np.isnan(pairs).all(axis=1)
    n = int(has_any.sum())
    values = np.full(len(curves), np.nan)
    if n >= FEWEST_SEEDS:
        to_others = np.nanmean(pairs[has_any], axis=1)
        values[has_any] = (2 * (n - 1) * to_others - n * to_others.mean()) / (n - 2)
    return values


def _pairs(curves: Sequence[Curve | None]) -> Array:
    """Of each with each other, shape (seeds, seeds), NaN on the diagonal."""
    found = np.full((len(curves), len(curves)), np.nan)
    for i, one in enumerate(curves):
        for j, other in enumerate(curves[:i]):
            found[i, j] = found[j, i] = distance(one, other)
    return found
