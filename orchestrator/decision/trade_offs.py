"""What cells take and achieve: those that nothing beats, and the best for each number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from orchestrator.decision.contenders import Contenders
from orchestrator.decision.recommendation import GpuCount, TradeOff
from orchestrator.text.cell_in_words import gpu_word, gpus_in_words
from sweeps.status import Status


def trade_offs(found: Contenders) -> list[TradeOff]:
    """Time, validation accuracy and cost of each cell, means over its seeds."""
    cells, totals = found.cells, (found.totals[each].means().tolist() for each in ("time", "cost"))
    rows = zip(cells["cell_id"], found.names, cells["val_accuracy"].tolist(), *totals, strict=True)
    return [
        TradeOff(cell_id=str(cell_id), name=name, time_s=time_s, val_accuracy=accuracy, cost=cost)
        for cell_id, name, accuracy, time_s, cost in rows
    ]


def front(found: Contenders) -> tuple[TradeOff, ...]:
    """The candidates that no other one beats in time, accuracy and cost at once."""
    points = trade_offs(found)
    return pareto_front([points[row] for row in found.candidates.index])


def pareto_front(points: Sequence[TradeOff]) -> tuple[TradeOff, ...]:
    """Cells that no other one matches in every figure that both have while beating it in one; sorted by time."""
    kept = [point for point in points if not any(_beats(other, point) for other in points)]
    return tuple(sorted(kept, key=lambda point: (math.isnan(point.time_s), point.time_s)))


def _beats(one: TradeOff, other: TradeOff) -> bool:
    gains = [other.time_s - one.time_s, one.val_accuracy - other.val_accuracy, other.cost - one.cost]
    known = [gain for gain in gains if not math.isnan(gain)]
    return bool(known) and min(known) >= 0 and max(known) > 0


def gpu_counts(found: Contenders) -> tuple[GpuCount, ...]:
    """The best cell for each number of GPUs tried, from the fewest to the most.

    The best is chosen as the recommendation is, among the cells with that many; at the favourite's number it is the
    favourite. Empty if only one number was tried.
    """
    counts, points = sorted(set(found.tried["gpus"].astype("float64"))), trade_offs(found)
    return tuple(_best(found, points, count) for count in counts) if len(counts) > 1 else ()


def counted(found: Contenders) -> str:
    """What `gpus` counts: `GPUs`, or `processes` on machines without any."""
    return gpu_word(on_cpu=_on_cpu(found))


def _on_cpu(found: Contenders) -> bool:
    return "cpu" in set(found.tried["device"])


def _best(found: Contenders, points: Sequence[TradeOff], gpus: float) -> GpuCount:
    choice, name = found.choice, gpus_in_words(gpus, on_cpu=_on_cpu(found))
    known = ~np.isnan(choice.log_objective.point) & (found.cells["gpus"].to_numpy(dtype="float64") == gpus)
    row = choice.favourite if choice.favourite is not None and known[choice.favourite] else choice.best_of(known)
    if row is None:
        return GpuCount(gpus=gpus, name=name, best=None, why_none=_why_none(found, gpus, known=bool(known.any())))
    return GpuCount(gpus=gpus, name=name, best=points[row])


def _why_none(found: Contenders, gpus: float, *, known: bool) -> str:
    if known:
        return "no cell is within the margin"
    ok = (found.tried["gpus"] == gpus) & (found.tried["status"] == Status.OK.value)
    return f"no cell has a valid {found.measure.name}" if ok.any() else "no cell is ok"
