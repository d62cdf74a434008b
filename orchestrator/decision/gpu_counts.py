"""What each number of GPUs is worth: the question that most sweeps are run for."""

from __future__ import annotations

import numpy as np

from orchestrator.decision.contenders import Contenders
from orchestrator.decision.recommendation import GpuCount


def gpu_counts(found: Contenders) -> tuple[GpuCount, ...]:
    """The best cell of each number of GPUs that a cell with a figure has, from the fewest to the most.

    The best is the one with the least objective of those that may be chosen for their accuracy; at the chosen cell's
    number of GPUs it is the chosen one, which may be within a tie of the least. Nothing where there is one number only.
    """
    known = ~np.isnan(found.choice.level.point)
    gpus = found.cells["gpus"].to_numpy(dtype="float64")
    counts = sorted(set(gpus[known].tolist()))
    return tuple(_best(found, count, known & (gpus == count)) for count in counts) if len(counts) > 1 else ()


def _best(found: Contenders, gpus: float, rows: np.ndarray) -> GpuCount:
    choice = found.choice
    kept = np.flatnonzero(rows & choice.passes).tolist()
    if not kept:
        return GpuCount(gpus=gpus, best=None)
    row = choice.chosen if choice.chosen in kept else min(kept, key=lambda each: float(choice.level.point[each]))
    return GpuCount(gpus=gpus, best=found.points[row])
