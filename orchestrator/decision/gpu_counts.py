"""What each number of GPUs is worth: the main question of most sweeps."""

from __future__ import annotations

import numpy as np

from orchestrator.decision.contenders import Contenders
from orchestrator.decision.recommendation import GpuCount
from orchestrator.text.cell_in_words import gpus_in_words
from sweeps.status import Status


def gpu_counts(found: Contenders) -> tuple[GpuCount, ...]:
    """The best cell for each number of GPUs tried, from the fewest to the most.

    The best has the least objective among those that qualify by accuracy; at the chosen cell's
    number of GPUs it is the chosen one, which may tie with the least. Empty if only one number was tried.
    """
    counts = sorted(set(found.tried["gpus"].astype("float64")))
    return tuple(_best(found, count) for count in counts) if len(counts) > 1 else ()


def _best(found: Contenders, gpus: float) -> GpuCount:
    choice, name = found.choice, gpus_in_words(gpus, on_cpu="cpu" in set(found.tried["device"]))
    known = ~np.isnan(choice.log_objective.point) & (found.cells["gpus"].to_numpy(dtype="float64") == gpus)
    kept = np.flatnonzero(known & choice.passes).tolist()
    if not kept:
        return GpuCount(gpus=gpus, name=name, best=None, why_none=_why_none(found, gpus, known=bool(known.any())))
    row = (
        choice.favourite
        if choice.favourite in kept
        else min(kept, key=lambda each: float(choice.log_objective.point[each]))
    )
    return GpuCount(gpus=gpus, name=name, best=found.points[row])


def _why_none(found: Contenders, gpus: float, *, known: bool) -> str:
    if known:
        return "no cell keeps the margin"
    ok = (found.tried["gpus"] == gpus) & (found.tried["status"] == Status.OK.value)
    return f"no cell has a valid {found.measure.name}" if ok.any() else "no cell is ok"
