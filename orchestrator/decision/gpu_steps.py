"""Says for each step of the GPU axis whether the further GPUs are worth it: the second GPU, then four instead of two.

A number of GPUs is worth it if one of its cells beats, by the objective, the best cell with fewer GPUs, and keeps its
accuracy. It is costly if the cost grows by a larger factor than the objective shrinks. The probability is the largest
over its cells of P(better by more than TIE) · P(accuracy within the margin), where the logarithms of the objectives
have moderated t distributions (`decision.choice`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.validity import is_valid
from orchestrator.config.request import Terms
from orchestrator.decision.candidates import OF_SCALE, Contenders
from orchestrator.decision.choice import TIE
from orchestrator.decision.recommendation import COSTLY, NOT_WORTH, SURE, UNKNOWN, WORTH, GpuStep, StepSpeed
from orchestrator.statistics.intervals import Array
from orchestrator.text.rows import gpu_word, gpus_in_words
from sweeps.status import Status


def gpu_steps(found: Contenders, terms: Terms) -> tuple[GpuStep, ...]:
    """Return a step for each number of GPUs tried after the smallest; none if only one was tried."""
    counts = sorted(set(found.tried["gpus"].astype("float64")))
    return tuple(_step(found, terms, fewer, gpus) for fewer, gpus in zip(counts, counts[1:], strict=False))


def _step(found: Contenders, terms: Terms, fewer: float, gpus: float) -> GpuStep:
    own = found.cells["gpus"].to_numpy(dtype="float64")
    level, choice = found.choice.log_objective, found.choice
    timed = ~np.isnan(level.point)
    reference, best = choice.best_of(timed & (own < gpus)), choice.best_of(timed & (own == gpus))
    p_worth = _p_worth(found, reference, timed & (own == gpus))
    gain, lo, hi = _gain(found, reference, best)
    cost = found.totals["cost"].means()
    known = reference is not None and best is not None and not found.on_cpu
    ratio = float(cost[best] / cost[reference]) if known else math.nan
    return GpuStep(
        gpus=gpus,
        fewer=fewer,
        name=f"2nd {gpu_word(on_cpu=found.on_cpu, one=True)}"
        if gpus == 2
        else gpus_in_words(gpus, on_cpu=found.on_cpu),
        worth=_worth(found, reference, gpus, p_worth, is_costly=ratio > gain),
        p_worth=p_worth,
        gain=gain,
        gain_lo=lo,
        gain_hi=hi,
        cost=ratio,
        by_batch=tuple(_by_batch(found, terms, fewer, gpus)),
    )


def _p_worth(found: Contenders, reference: int | None, rows: npt.NDArray[np.bool_]) -> float:
    """Return the probability that one of the rows is worth it; NaN if that is not known."""
    if reference is None or not rows.any():
        return math.nan
    compared = ~np.isnan(found.choice.accuracy_difference.point)
    faster = found.choice.log_objective.minus(reference).p_below(-math.log1p(TIE))
    chances: Array = (faster * np.where(compared, found.choice.p_within, 1.0))[rows]
    return math.nan if np.isnan(chances).any() else float(chances.max())


def _worth(found: Contenders, reference: int | None, gpus: float, p_worth: float, *, is_costly: bool) -> str:
    if reference is None or math.isnan(p_worth) or not found.are_timed:
        return UNKNOWN
    if p_worth >= SURE:
        return COSTLY if is_costly else WORTH
    cells = found.tried.set_index("cell_id")["gpus"]
    open_yet = (
        each for each in found.untimed if cells[each.cell_id] == gpus and each.objective < found.objectives[reference]
    )
    return NOT_WORTH if p_worth <= 1 - SURE and not any(open_yet) else UNKNOWN


def _gain(found: Contenders, reference: int | None, best: int | None) -> tuple[float, float, float]:
    """Return the objective of the best cell with fewer GPUs over that of the best with this number, with its ends."""
    if reference is None or best is None:
        return math.nan, math.nan, math.nan
    ratio = found.choice.log_objective.minus(best).intervals().map(np.exp)
    return float(ratio.point[reference]), float(ratio.lo[reference]), float(ratio.hi[reference])


def _by_batch(found: Contenders, terms: Terms, fewer: float, gpus: float) -> Iterator[StepSpeed]:
    """Yield the range of speed-ups over `fewer` GPUs at each batch, over the cells that differ in nothing else."""
    tried = found.tried[(found.tried["status"] == Status.OK.value) & (found.tried["samples_per_s"] > 0)]
    valid = is_valid(tried["timing_valid"])
    tried = tried[valid] if valid.any() else tried
    if tried.empty:
        return
    side = FIXED_SIDE[tried["scaling"].iloc[0]]
    alike = [side, "device", *(column for axis, column in terms.axes.items() if axis not in OF_SCALE)]
    columns: Sequence[str] = list(dict.fromkeys([*alike, "cell_id", "samples_per_s"]))
    few, many = (tried.loc[tried["gpus"] == count, columns] for count in (fewer, gpus))
    pairs = pd.merge(many, few, on=list(dict.fromkeys(alike)), suffixes=("", " fewer"))
    passes = dict(zip(found.cells["cell_id"], found.choice.passes.tolist(), strict=True))
    compared = found.contest.baseline is not None
    for batch in sorted(set(pairs[side])):
        group = pairs[pairs[side] == batch]
        ratio = group["samples_per_s"] / group["samples_per_s fewer"]
        known = [passes[cell] for cell in group["cell_id"] if cell in passes]
        yield StepSpeed(
            batch=int(batch),
            is_global=side == "global_batch_size",
            lo=float(ratio.min()),
            hi=float(ratio.max()),
            keeps_margin=any(known) if compared and known else None,
        )
