"""Compares speeds at the same batch: what the GPUs and the batch each add to a speed-up, and each step of the GPU axis.

Speeds are throughputs, in samples per second, of cells that are ok and have a valid timing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.baseline import FIXED_SIDE
from orchestrator.decision.candidates import OF_SCALE, Contenders
from orchestrator.decision.eligibility import has_speed
from orchestrator.decision.recommendation import StepSpeed
from orchestrator.statistics.intervals import Array
from sweeps.lr_rule import SAME_AT_REFERENCE


@functools.lru_cache(maxsize=1)
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
    tried, all_columns = contenders.tried, _columns(contenders)
    # A step does the same work at any learning rate, and under most rules.
    of_rate = {"lr_multiplier"} | ({"lr_rule"} if set(tried["lr_rule"]) <= SAME_AT_REFERENCE else set())
    columns = [column for column in all_columns if column not in of_rate]
    few = tried[has_speed(tried) & (tried["gpus"] == cells["gpus"][baseline])]

    def with_few_gpus(columns: Sequence[str]) -> pd.Series[Any]:
        """Return for each cell the mean speed of the cells with the baseline's GPUs that equal it in these columns."""
        logs = np.log(few["samples_per_s"]).groupby(_kinds(few, columns)).mean()
        return pd.Series(np.exp(_kinds(cells, columns).map(logs).astype("float64")), cells.index)

    speed, kinds = cells["samples_per_s"].where(has_speed(cells)), _kinds(cells, columns)
    is_alike = kinds == kinds[baseline]
    at_same_batch = with_few_gpus(all_columns).fillna(with_few_gpus(columns)).mask(is_alike, speed[baseline])
    of_gpus = (speed / at_same_batch).mask(cells["gpus"] == cells["gpus"][baseline], 1.0)
    time_s = contenders.totals["time"].means()
    # A cell with the baseline's batch has no gain of it: what is left is chance.
    of_batch = (time_s[baseline] / time_s / of_gpus).mask(is_alike, 1.0)
    return of_gpus.to_numpy(dtype="float64"), of_batch.to_numpy(dtype="float64")


def speeds_by_batch(contenders: Contenders, fewer: float, gpus: float) -> Iterator[StepSpeed]:
    """Yield the range of speed-ups over `fewer` GPUs at each batch, over the cells that differ in nothing else."""
    tried, columns = contenders.tried, _columns(contenders)
    side = columns[0]
    timed = tried.loc[has_speed(tried), [*columns, "gpus", "cell_id", "samples_per_s"]]
    few, many = (timed[timed["gpus"] == count] for count in (fewer, gpus))
    pairs = many.merge(few, on=columns, suffixes=("", "_fewer"))
    choice, ids = contenders.choice, contenders.cells["cell_id"]
    passes, p_within = pd.Series(choice.keeps_accuracy, ids), pd.Series(choice.p_within, ids)
    for batch in sorted(set(pairs[side])):
        group = pairs[pairs[side] == batch]
        ratio = group["samples_per_s"] / group["samples_per_s_fewer"]
        compared = ids[ids.isin(group["cell_id"])]
        is_compared = contenders.baseline is not None and len(compared) > 0
        yield StepSpeed(
            batch=int(batch),
            is_global=side == "global_batch_size",
            lo=float(ratio.min()),
            hi=float(ratio.max()),
            keeps_margin=bool(passes[compared].any()) if is_compared else None,
            p_within=float(p_within[compared].max()),
        )


def _columns(contenders: Contenders) -> list[str]:
    """Return the columns of all axes but the GPUs: first the side of the batch that stays the same with more GPUs."""
    axes = [column for axis, column in contenders.terms.axes.items() if axis not in OF_SCALE]
    return list(dict.fromkeys([FIXED_SIDE[contenders.tried["scaling"].iloc[0]], "device", *axes]))


def _kinds(cells: pd.DataFrame, columns: Sequence[str]) -> pd.Series[Any]:
    """Return the values of these columns as one key for each cell."""
    # As text, because a missing value does not equal itself; for few cells, pandas takes twenty times as long.
    texts = (map(str, cells[column].tolist()) for column in columns)
    return pd.Series(list(zip(*texts, strict=True)), index=cells.index, dtype=object)
