"""Divides a cell's lost efficiency among the parts of a step, and names a remedy for the largest part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from orchestrator.analysis.validity import LAUNCH_BOUND

PARTS = ("data", "host", "communication", "imbalance", "compute")
"""Parts of a step that the trainable reports: `step_data_s` and so on."""

LOST = (*(f"lost_{part}" for part in PARTS), "lost_rest")
OF_SCALING = ("mfu", *LOST, "remedy")
"""Shares of 1, which with the efficiency add up to 1; empty for a cell that is its own baseline."""

LOST_TO = {
    "lost_data": "waiting for data",
    "lost_host": "launching work",
    "lost_communication": "exchanging gradients",
    "lost_imbalance": "waiting for the slowest rank",
    "lost_compute": "slower passes",
    "lost_rest": "the rest",
}
"""The losses in words."""

REMEDIES = {
    "lost_data": "waiting for data: a loader per rank, more of its workers, or trainable.input=resident",
    "lost_host": "launching work: a larger batch per device, trainable.cuda_graph=on, or trainable.compile=default",
    "lost_communication": "exchanging gradients: a larger batch per device, or more grad_accum_steps",
    "lost_imbalance": "waiting for the slowest rank: strategy=ddp_unequal gives each a share by its speed",
    "lost_compute": "slower passes: a larger batch per device, or fewer processes that share cores and memory",
    "lost_rest": "nothing that the loop's clocks see: profile a step",
}
UNDIVIDED = (
    "a captured step (trainable.cuda_graph=on) shows only how long it waits for data: a trial of this cell with"
    " trainable.cuda_graph=off shows the other parts"
)
"""The remedy if the parts of a step are not known."""

LATE = "waiting for the rank whose launches are late: trainable.cuda_graph=on, or a larger batch per device"
"""The remedy if ranks wait for each other and GPUs for launches: then no rank's GPU is slower than another's."""

REPEATED = (
    "samples that several GPUs train on in the same step, which count once: give each its own (trainable.input=loader"
    " or resident)"
)
"""The remedy if repeated samples are most of the loss, which is in the rest."""

_AS_MANY = 0.8
"""A step repeats samples if its share of distinct samples is below this part of the baseline's; else noise."""

NOTEWORTHY = 0.02
"""A smaller loss is not worth a remedy."""


def add_scaling_loss(cells: pd.DataFrame, ok: pd.DataFrame) -> None:
    """Add OF_SCALING, from the mean parts of the steps of the cells' ok seeds; the cells have their efficiency.

    With T the time of a step and e the efficiency, an ideal step takes e·T. Each part has the same share of the ideal
    step as of the baseline's step. The time of a part beyond that, over T, is lost to the part; the remaining loss is
    the rest. Of a captured step only the waiting for data is known; all else is the rest. The rest also holds the loss
    from ranks that train on the same samples, which makes no part of a step longer.
    """
    columns = [f"step_{part}_s" for part in PARTS]
    known = [column for column in ("mfu", "step_s", *columns) if column in ok]
    numbers = ok[known].apply(pd.to_numeric, errors="coerce").astype("float64")
    means = numbers.groupby(ok["cell_id"]).mean().reindex(columns=["mfu", "step_s", *columns])
    own, baseline = means.reindex(cells.index), means.reindex(cells["baseline_cell_id"]).set_axis(cells.index)
    cells["mfu"] = own["mfu"]
    # One GPU exchanges nothing and waits for nobody: there is no loss to divide.
    several = (cells["baseline_cell_id"] != cells["cell_id"]) & (cells["gpus"] > 1)
    distinct = _distinct(cells, own["step_s"])
    kept_s = cells["efficiency"] / distinct  # by the time of a step alone
    for part, column in zip(PARTS, columns, strict=True):
        ideal = baseline[column] / baseline["step_s"] * kept_s
        cells[f"lost_{part}"] = (own[column] / own["step_s"] - ideal).where(several)
    parts = cells[[f"lost_{part}" for part in PARTS]]
    undivided = parts["lost_data"].notna() & parts.drop(columns="lost_data").isna().all(axis="columns")
    named = parts.sum(axis="columns", skipna=False).where(~undivided, parts["lost_data"])
    cells["lost_rest"] = 1 - cells["efficiency"] - named
    remedies = [_remedy(row) for row in cells[list(LOST)].to_dict("records")]
    remedy = pd.Series(remedies, cells.index).mask(several & (distinct < 1), REPEATED)
    late = (cells["device"] != "cpu") & (own["step_host_s"] >= LAUNCH_BOUND * own["step_s"])
    cells["remedy"] = remedy.mask(late & (remedy == REMEDIES["lost_imbalance"]), LATE)


def _distinct(cells: pd.DataFrame, step_s: pd.Series[Any]) -> pd.Series[Any]:
    """Return the share of distinct samples in a step, as a part of the baseline's share; 1 within noise."""
    share = cells["samples_per_s"] * step_s / cells["global_batch_size"]
    ratio = share / share.reindex(cells["baseline_cell_id"]).set_axis(cells.index)
    return ratio.where(ratio < _AS_MANY, 1.0)


def largest_loss(row: Mapping[Any, Any]) -> str:
    """Return the column of LOST with the largest loss; empty if no loss is known or at least NOTEWORTHY."""
    known = {column: float(row[column]) for column in LOST if not math.isnan(float(row[column]))}
    if "lost_rest" not in known or max(known.values()) < NOTEWORTHY:
        return ""
    return max(known, key=lambda column: known[column])


def _remedy(row: Mapping[Any, Any]) -> str:
    largest = largest_loss(row)
    if largest == "lost_rest" and math.isnan(row["lost_compute"]):
        return UNDIVIDED
    return REMEDIES.get(largest, "")
