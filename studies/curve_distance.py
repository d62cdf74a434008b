"""The distance between two loss curves: arrays in, numbers out.

The distance is the mean of |ln a − ln b| over the positions of either curve within the range of both, with logarithms
linear between positions: 0.05 means that losses differ by 5% on average. Trials of the same seed start from the same
weights; their distance between two cells contains the effect of the change and chance. The distance between different
seeds of one cell contains chance alone. Cells with the same distribution of curves have the same mean distance between
as within them; other cells have a larger distance between them (Székely and Rizzo, "Energy statistics", Journal of
Statistical Planning and Inference 143, 2013; pairs of one seed can be nearer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.statistics.intervals import Array, logs

FEWEST = 5  # curves with fewer positions in their common range are not compared


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A loss curve: ascending positions and the logarithms of the losses there, arrays of one shape."""

    at: Array
    log_loss: Array

    @staticmethod
    def of(at: npt.ArrayLike, loss: npt.ArrayLike) -> Curve:
        """Sort by position and keep the last loss of each; losses that are not finite or not above 0 are dropped."""
        places, values = np.asarray(at, dtype=np.float64), logs(loss)
        known = np.isfinite(places) & np.isfinite(values)
        places, values = places[known][::-1], values[known][::-1]
        ascending, first = np.unique(places, return_index=True)
        return Curve(at=ascending, log_loss=values[first])


def distance(one: Curve | None, other: Curve | None) -> float:
    """Return the distance; NaN if a curve is missing or has fewer than FEWEST positions in the common range."""
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
    """Return the distance of each pair of curves, shape (seeds,); both cells have the same order of seeds."""
    return np.array([distance(one, other) for one, other in zip(ones, others, strict=True)], dtype=np.float64)
