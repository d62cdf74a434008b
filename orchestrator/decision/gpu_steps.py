"""Says for each step of the GPU axis whether the further GPUs are worth it: the second GPU, then four instead of two.

A number of GPUs is worth it if one of its cells beats, by the objective, the best cell with fewer GPUs, and keeps its
accuracy. The probability is the largest over its cells of P(better by more than TIE) · P(accuracy within the margin).
It is costly if, more likely than not, the cost grows by a larger factor than the objective shrinks. The logarithms of
the objectives have moderated t distributions (`decision.choice`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.analysis.validity import is_valid
from orchestrator.decision.candidates import OF_SCALE, Contenders
from orchestrator.decision.choice import TIE
from orchestrator.decision.recommendation import (
    COSTLY,
    NOT_WORTH,
    SURE,
    UNDECIDED,
    WORTH,
    Figure,
    GpuStep,
    StepCell,
    StepSpeed,
)
from orchestrator.statistics.intervals import Array
from orchestrator.text.rows import gpu_word, gpus_in_words
from sweeps.lr_rule import SAME_AT_REFERENCE
from sweeps.status import Status


def gpu_steps(contenders: Contenders) -> tuple[GpuStep, ...]:
    """Return a step for each number of GPUs tried after the smallest; none if only one was tried."""
    counts = sorted(set(contenders.tried["gpus"].astype("float64")))
    return tuple(_step(contenders, fewer, gpus) for fewer, gpus in zip(counts, counts[1:], strict=False))


def _step(contenders: Contenders, fewer: float, gpus: float) -> GpuStep:
    own = contenders.cells["gpus"].to_numpy(dtype="float64")
    choice = contenders.choice
    timed = ~np.isnan(choice.log_objective.point)
    reference, best = choice.best_of(own < gpus), choice.best_of(own == gpus)
    p_worth, rows, shown, faster_one = math.nan, timed & (own == gpus), best, None
    if reference is not None and rows.any():
        compared = ~np.isnan(choice.score_difference.point)
        faster = choice.log_objective.minus(reference).p_below(-math.log1p(TIE))
        # NaN if one of the chances is unknown.
        chances = faster * np.where(compared, choice.p_within, 1.0)
        p_worth = float(chances[rows].max())
        # A faster cell that may lose accuracy has no gain to promise.
        sure = choice.best_of(rows & (chances >= SURE))
        shown = best if sure is None else sure
        if best is not None and faster[best] >= SURE and (best != shown or chances[best] < SURE):
            faster_one = best
    cell = _cell(contenders, reference, shown)
    worth = UNDECIDED
    if p_worth >= SURE:
        worth = COSTLY if cell is not None and cell.is_costly else WORTH
    elif reference is not None and p_worth <= 1 - SURE:
        untimed = contenders.untimed
        may_be_faster = (untimed["gpus"] == gpus) & (untimed["objective"] < contenders.objectives[reference])
        worth = UNDECIDED if may_be_faster.any() else NOT_WORTH
    elif reference is not None and not rows.any() and contenders.is_ruled_out(gpus):
        worth = NOT_WORTH
    word = gpu_word(on_cpu=contenders.on_cpu, one=True)
    return GpuStep(
        gpus=gpus,
        fewer=fewer,
        name=f"2nd {word}" if gpus == 2 else gpus_in_words(gpus, on_cpu=contenders.on_cpu),
        worth=worth,
        p_worth=p_worth,
        best_fewer=math.nan if reference is None else float(own[reference]),
        name_of_fewer="" if reference is None else contenders.names[reference],
        cell=cell,
        if_held=_cell(contenders, reference, faster_one),
        by_batch=tuple(_by_batch(contenders, fewer, gpus)),
    )


def _cell(contenders: Contenders, reference: int | None, row: int | None) -> StepCell | None:
    if row is None:
        return None
    ratio, is_costly = math.nan, False
    if reference is not None and not contenders.on_cpu:
        cost = contenders.totals["cost"].means()
        ratio, is_costly = float(cost[row] / cost[reference]), contenders.choice.is_costly(row, reference)
    return StepCell(
        cell_id=str(contenders.cells["cell_id"][row]),
        name=contenders.names[row],
        gain=gain_over(contenders, reference, row),
        cost=ratio,
        is_costly=is_costly,
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


def factors_of_speedup(contenders: Contenders) -> tuple[Array, Array]:
    """Return what each cell's GPUs and what its batch contribute to its speed-up over the baseline; NaN if unknown.

    The factor of the GPUs is the throughput over that of the baseline's number of GPUs at the same batch; the rest is
    the batch's.
    """
    cells, baseline = contenders.cells, contenders.baseline
    unknown = np.full(len(cells), np.nan)
    # Throughputs leave out the start-up that a total time includes.
    if baseline is None or contenders.ends_later:
        return unknown, unknown
    tried, (all_columns, columns) = contenders.tried, _columns_of_speed(contenders)
    few = tried[_is_timed(tried) & (tried["gpus"] == cells["gpus"][baseline])]

    def with_few_gpus(columns: Sequence[str]) -> pd.Series[Any]:
        """Return for each cell the mean speed of the cells with the baseline's GPUs that equal it in these columns."""
        logs = np.log(few["samples_per_s"]).groupby(_kinds(few, columns)).mean()
        return pd.Series(np.exp(_kinds(cells, columns).map(logs).astype("float64")), cells.index)

    speed, kinds = cells["samples_per_s"].where(_is_timed(cells)), _kinds(cells, columns)
    is_alike = kinds == kinds[baseline]
    at_same_batch = with_few_gpus(all_columns).fillna(with_few_gpus(columns)).mask(is_alike, speed[baseline])
    of_gpus = (speed / at_same_batch).mask(cells["gpus"] == cells["gpus"][baseline], 1.0)
    time_s = contenders.totals["time"].means()
    # A cell with the baseline's batch has no gain of it: what is left is chance.
    of_batch = (time_s[baseline] / time_s / of_gpus).mask(is_alike, 1.0)
    return of_gpus.to_numpy(dtype="float64"), of_batch.to_numpy(dtype="float64")


def _columns_of_speed(contenders: Contenders) -> tuple[list[str], list[str]]:
    """Return the columns of all axes but the GPUs, and those of them that a step's speed depends on."""
    tried, axes = contenders.tried, contenders.terms.axes
    others = [FIXED_SIDE[tried["scaling"].iloc[0]], "device", *(axes[axis] for axis in axes if axis not in OF_SCALE)]
    # A step does the same work at any learning rate, and under most rules.
    of_rate = {"lr_multiplier"} | ({"lr_rule"} if set(tried["lr_rule"]) <= SAME_AT_REFERENCE else set())
    return list(dict.fromkeys(others)), list(dict.fromkeys(column for column in others if column not in of_rate))


def _kinds(cells: pd.DataFrame, columns: Sequence[str]) -> pd.Series[Any]:
    """Return the values of these columns as one key for each cell."""
    # As text, because a missing value does not equal itself; for few cells, pandas takes twenty times as long.
    texts = (map(str, cells[column].tolist()) for column in columns)
    return pd.Series(list(zip(*texts, strict=True)), index=cells.index, dtype=object)


def _is_timed(cells: pd.DataFrame) -> pd.Series[bool]:
    """Return which cells are ok and have a throughput from a valid timing."""
    return (cells["status"] == Status.OK.value) & (cells["samples_per_s"] > 0) & is_valid(cells["timing_valid"])


def _by_batch(contenders: Contenders, fewer: float, gpus: float) -> Iterator[StepSpeed]:
    """Yield the range of speed-ups over `fewer` GPUs at each batch, over the cells that differ in nothing else."""
    tried = contenders.tried
    is_timed = _is_timed(tried)
    if not is_timed.any():
        return
    side = FIXED_SIDE[tried["scaling"].iloc[0]]
    alike = [side, "device", *(column for axis, column in contenders.terms.axes.items() if axis not in OF_SCALE)]
    columns: Sequence[str] = list(dict.fromkeys([*alike, "cell_id", "samples_per_s"]))
    few, many = (tried.loc[is_timed & (tried["gpus"] == count), columns] for count in (fewer, gpus))
    pairs = pd.merge(many, few, on=list(dict.fromkeys(alike)), suffixes=("", " fewer"))
    passes = dict(zip(contenders.cells["cell_id"], contenders.choice.passes.tolist(), strict=True))
    p_within = dict(zip(contenders.cells["cell_id"], contenders.choice.p_within.tolist(), strict=True))
    is_compared = contenders.baseline is not None
    for batch in sorted(set(pairs[side])):
        group = pairs[pairs[side] == batch]
        ratio = group["samples_per_s"] / group["samples_per_s fewer"]
        known = [passes[cell] for cell in group["cell_id"] if cell in passes]
        yield StepSpeed(
            batch=int(batch),
            is_global=side == "global_batch_size",
            lo=float(ratio.min()),
            hi=float(ratio.max()),
            keeps_margin=any(known) if is_compared and known else None,
            p_within=max((p_within[cell] for cell in group["cell_id"] if cell in p_within), default=math.nan),
        )
