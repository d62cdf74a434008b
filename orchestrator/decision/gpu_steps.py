"""Says for each step of the GPU axis whether the further GPUs are worth it: the second GPU, then four instead of two.

A number of GPUs is worth it if one of its cells beats, by the objective, the best cell with fewer GPUs that surely
keeps its accuracy, and keeps its own. The probability is the largest over its cells of P(better by more than TIE) ·
P(accuracy within the margin). It is costly if, more likely than not, the cost grows by a larger factor than the
objective shrinks. The logarithms of the objectives have moderated t distributions (`decision.choice`).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from orchestrator.decision.candidates import Contenders
from orchestrator.decision.choice import Choice
from orchestrator.decision.recommendation import COSTLY, NOT_WORTH, UNDECIDED, WORTH, Figure, GpuStep, StepCell
from orchestrator.decision.same_batch import speeds_by_batch
from orchestrator.decision.thresholds import SAFE, SURE, TIE
from orchestrator.statistics.intervals import Array
from orchestrator.text.cell_labels import gpu_word, gpus_in_words


def gpu_steps(contenders: Contenders) -> tuple[GpuStep, ...]:
    """Return a step for each number of GPUs tried after the smallest; none if only one was tried."""
    counts = sorted(set(contenders.tried["gpus"].astype("float64")))
    return tuple(_step(contenders, fewer, gpus) for fewer, gpus in zip(counts, counts[1:], strict=False))


def _step(contenders: Contenders, fewer: float, gpus: float) -> GpuStep:
    own = contenders.cells["gpus"].to_numpy(dtype="float64")
    choice = contenders.choice
    # A cell that may lose accuracy is no measure for others.
    reference, cell = _safest(choice, own < gpus), _safest(choice, own == gpus)
    faster, chances = np.full(len(own), np.nan), np.full(len(own), np.nan)
    if reference is not None:
        faster = choice.log_objective.minus(reference).p_below(-math.log1p(TIE))
        # NaN if one of the chances is unknown.
        chances = faster * np.where(np.isnan(choice.score_difference.point), 1.0, choice.p_within)
    best = choice.best_of(own == gpus)
    has_better = best is not None and best != cell and contenders.objectives[best] < contenders.objectives[cell]
    of_gpus = chances[(own == gpus) & ~np.isnan(choice.log_objective.point)]
    p_worth = float(of_gpus.max()) if len(of_gpus) else math.nan
    word = gpu_word(on_cpu=contenders.on_cpu, one=True)
    return GpuStep(
        gpus=gpus,
        fewer=fewer,
        name=f"2nd {word}" if gpus == 2 else gpus_in_words(gpus, on_cpu=contenders.on_cpu),
        worth=_worth(contenders, gpus, reference, faster, chances),
        p_worth=p_worth,
        best_fewer=math.nan if reference is None else float(own[reference]),
        name_of_fewer="" if reference is None else contenders.names[reference],
        cell=_cell(contenders, reference, cell, faster),
        if_held=_cell(contenders, reference, best if has_better else None, faster),
        by_batch=tuple(speeds_by_batch(contenders, fewer, gpus)),
    )


def _safest(choice: Choice, rows: npt.NDArray[np.bool_]) -> int | None:
    """Return the best of these cells that surely keep their accuracy, or for all that is known; else of all."""
    safe = choice.best_of(rows & ~(choice.p_within < SAFE))
    return choice.best_of(rows) if safe is None else safe


def _worth(contenders: Contenders, gpus: float, reference: int | None, faster: Array, chances: Array) -> str:
    """Return whether this number of GPUs is worth it with any of its cells."""
    choice, own = contenders.choice, contenders.cells["gpus"].to_numpy(dtype="float64")
    rows = (own == gpus) & ~np.isnan(choice.log_objective.point)
    if reference is None:
        return UNDECIDED
    if not rows.any():
        return NOT_WORTH if contenders.is_ruled_out(gpus) else UNDECIDED
    sure = choice.best_of(rows & (chances >= SURE))
    if sure is not None:
        return _worth_of_cell(contenders, reference, sure, faster)
    untimed = contenders.untimed
    may_be_faster = (untimed["gpus"] == gpus) & (untimed["objective"] < contenders.objectives[reference])
    return NOT_WORTH if chances[rows].max() <= 1 - SURE and not may_be_faster.any() else UNDECIDED


def _worth_of_cell(contenders: Contenders, reference: int, row: int, faster: Array) -> str:
    """Return whether the GPUs are worth it with this cell, if it keeps its accuracy."""
    p_costly = 0.0 if contenders.on_cpu else contenders.choice.p_costly(row, reference)
    if faster[row] >= SURE:
        return COSTLY if p_costly > 0.5 else WORTH
    # Where it is open whether there is any gain, it is surely too small for the cost.
    return NOT_WORTH if faster[row] <= 1 - SURE or p_costly >= SURE else UNDECIDED


def _cell(contenders: Contenders, reference: int | None, row: int | None, faster: Array) -> StepCell | None:
    if row is None:
        return None
    cost = contenders.totals["cost"].means()
    has_cost = reference is not None and not contenders.on_cpu
    return StepCell(
        cell_id=str(contenders.cells["cell_id"][row]),
        name=contenders.names[row],
        gain=gain_over(contenders, reference, row),
        cost=float(cost[row] / cost[reference]) if has_cost else math.nan,
        worth=UNDECIDED if reference is None else _worth_of_cell(contenders, reference, row, faster),
        p_within_margin=float(contenders.choice.p_within[row]),
    )


def best_with_fewest(contenders: Contenders) -> int | None:
    """Return the best cell with the fewest GPUs tried, if cells with more were tried, too."""
    counts = contenders.tried["gpus"]
    if counts.nunique() < 2:
        return None
    return contenders.choice.best_of((contenders.cells["gpus"] == counts.min()).to_numpy())


def gain_over(contenders: Contenders, reference: int | None, row: int | None) -> Figure:
    """Return the objective of one cell over that of another: 2 is half the time. NaN if one of them is unknown."""
    if reference is None or row is None:
        return Figure(value=math.nan, unit="1")
    ratio = contenders.choice.log_objective.minus(row).intervals().map(np.exp)
    value, lo, hi = (float(ends[reference]) for ends in (ratio.point, ratio.lo, ratio.hi))
    return Figure(value=value, lo=lo, hi=hi, unit="1")
