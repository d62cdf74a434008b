"""How far apart two loss curves are. Pure: arrays in, numbers out.

The distance of two curves is the mean over their common epochs of |ln a − ln b|: 0.05 means that losses differ by 5% on
average. Between trials of the same seed, which start from the same weights and see the samples in the same order, it
tells what the change from one cell to the other does; between different seeds of one cell it tells what chance does,
and is the yardstick for the first.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from orchestrator.statistics.bootstrap import mean_interval
from orchestrator.statistics.means import Array, Interval, logs


def by_seed(one: Array, other: Array) -> Array:
    """Of two cells' losses, shape (seeds, epochs), the distance of each seed's pair; NaN without a common epoch."""
    apart = np.abs(logs(one) - logs(other))
    known = ~np.isnan(apart)
    total = np.where(known, apart, 0.0).sum(axis=1)
    return np.asarray(np.where(known.any(axis=1), total / np.maximum(1, known.sum(axis=1)), np.nan), dtype=np.float64)


def between_cells(one: Array, other: Array) -> Interval:
    """The mean distance of pairs with the same seed, and its interval; arrays of one element."""
    return mean_interval(by_seed(one, other)[None, :])


def between_seeds(losses: Array) -> float:
    """The mean distance between the different seeds of one cell, shape (seeds, epochs); NaN for fewer than two."""
    pairs = [by_seed(losses[[i]], losses[[j]])[0] for i, j in combinations(range(len(losses)), 2)]
    known = [pair for pair in pairs if not np.isnan(pair)]
    return float(np.mean(known)) if known else float("nan")
