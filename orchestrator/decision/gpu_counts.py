"""What each number of GPUs is worth, which is the main question of most sweeps."""

from __future__ import annotations

import numpy as np

from orchestrator.decision.contenders import Contenders
from orchestrator.decision.recommendation import GpuCount
from orchestrator.text.cell_in_words import gpu_word, gpus_in_words
from sweeps.status import Status


def gpu_counts(found: Contenders) -> tuple[GpuCount, ...]:
    """The best cell for each number of GPUs tried, from the fewest to the most.

    The best is chosen as the recommendation is, among the cells with that many; at the favourite's number it is the
    favourite. Empty if only one number was tried.
    """
    counts = sorted(set(found.tried["gpus"].astype("float64")))
    return tuple(_best(found, count) for count in counts) if len(counts) > 1 else ()


def counted(found: Contenders) -> str:
    """What `gpus` counts: `GPUs`, or `processes` on machines without any."""
    return gpu_word(on_cpu=_on_cpu(found))


def _on_cpu(found: Contenders) -> bool:
    return "cpu" in set(found.tried["device"])


def _best(found: Contenders, gpus: float) -> GpuCount:
    choice, name = found.choice, gpus_in_words(gpus, on_cpu=_on_cpu(found))
    known = ~np.isnan(choice.log_objective.point) & (found.cells["gpus"].to_numpy(dtype="float64") == gpus)
    row = choice.favourite if choice.favourite is not None and known[choice.favourite] else choice.best_of(known)
    if row is None:
        return GpuCount(gpus=gpus, name=name, best=None, why_none=_why_none(found, gpus, known=bool(known.any())))
    return GpuCount(gpus=gpus, name=name, best=found.points[row])


def _why_none(found: Contenders, gpus: float, *, known: bool) -> str:
    if known:
        return "no cell is within the margin"
    ok = (found.tried["gpus"] == gpus) & (found.tried["status"] == Status.OK.value)
    return f"no cell has a valid {found.measure.name}" if ok.any() else "no cell is ok"
