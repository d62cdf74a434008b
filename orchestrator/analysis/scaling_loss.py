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
"""The losses in words; see `words_of`."""

BETWEEN_NODES = (
    "exchanging gradients between nodes: fewer nodes with more GPUs each, a larger batch per device, or more"
    " grad_accum_steps"
)
"""The remedy if the GPUs that exchange gradients are on several nodes."""

REMEDIES = {
    "lost_data": "waiting for data: a loader per rank, more of its workers, or trainable.input=resident",
    "lost_host": "launching work: a larger batch per device, trainable.cuda_graph=on, or trainable.compile=default",
    "lost_communication": (
        "exchanging gradients: a larger batch per device, or more grad_accum_steps, if the metric holds"
    ),
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

THREADS = (
    "launching work from one process: strategy=ddp has a process for each GPU; else a larger batch per device, or"
    " trainable.compile=default"
)
"""The remedy if one process launches the work of all GPUs."""

REPEATED = (
    "samples that several GPUs train on in the same step, which count once: give each its own (trainable.input=loader"
    " or resident)"
)
"""The remedy if repeated samples are most of the loss, which is in the rest."""

_AS_MANY = 0.8
"""A step repeats samples if its share of distinct samples is below this part of the baseline's; else noise."""

NOTEWORTHY = 0.02
"""A smaller loss is not worth a remedy."""


def add_scaling_loss(cells: pd.DataFrame, ok: pd.DataFrame, on_fewest_nodes: pd.Series[Any]) -> None:
    """Add OF_SCALING, from the mean parts of the steps of the cells' ok seeds; the cells have their efficiency.

    `on_fewest_nodes` has the id of the same cell on fewer nodes, or its own. What only the cell on more nodes loses is
    lost to the exchange between them; trials that report no parts of a step, such as commands, have this loss alone.

    With T the time of a step and e the efficiency, an ideal step takes e·T. Each part has the same share of the ideal
    step as of the baseline's step. The time of a part beyond that, over T, is lost to the part; the remaining loss is
    the rest. Of a captured step only the waiting for data is known; all else is the rest. The rest also holds the loss
    from ranks that train on the same samples, which makes no part of a step longer.
    """
    figures = ["mfu", "step_s", *(f"step_{part}_s" for part in PARTS)]
    known = ok[[column for column in figures if column in ok]]
    numbers = known.apply(pd.to_numeric, errors="coerce").astype("float64")
    means = numbers.groupby(ok["cell_id"]).mean().reindex(columns=figures)
    own, baseline = means.reindex(cells.index), means.reindex(cells["baseline_cell_id"]).set_axis(cells.index)
    # One GPU exchanges nothing and waits for nobody: there is no loss to divide.
    several = (cells["baseline_cell_id"] != cells["cell_id"]) & (cells["gpus"] > 1)
    distinct = _distinct(cells, own["step_s"])
    kept_s = cells["efficiency"] / distinct  # by the time of a step alone
    parts = pd.DataFrame(index=cells.index)
    for part in PARTS:
        ideal = baseline[f"step_{part}_s"] / baseline["step_s"] * kept_s
        parts[f"lost_{part}"] = (own[f"step_{part}_s"] / own["step_s"] - ideal).where(several)
    undivided = parts["lost_data"].notna() & parts.drop(columns="lost_data").isna().all(axis="columns")
    named = parts.sum(axis="columns", skipna=False).where(~undivided, parts["lost_data"])
    on_fewer = cells["efficiency"].reindex(on_fewest_nodes).set_axis(cells.index) - cells["efficiency"]
    of_nodes = on_fewer.where(several & parts.isna().all(axis="columns") & (on_fewest_nodes != cells["cell_id"]))
    parts["lost_communication"] = parts["lost_communication"].fillna(of_nodes)
    parts["lost_rest"] = 1 - cells["efficiency"] - named.fillna(of_nodes)
    cells[["mfu", *LOST]] = pd.concat([own["mfu"], parts], axis="columns")
    cells["remedy"] = _remedies(cells, own, several & (distinct < 1))


def _remedies(cells: pd.DataFrame, own: pd.DataFrame, repeats: pd.Series[Any]) -> pd.Series[Any]:
    """Return the remedy of each cell, by its loss and the means of its steps; `repeats`: some samples count once."""
    remedy = pd.Series([_remedy(row) for row in cells[list(LOST)].to_dict("records")], cells.index)
    remedy = remedy.mask(repeats, REPEATED)
    remedy = remedy.mask((cells["strategy"] == "data_parallel") & (remedy == REMEDIES["lost_host"]), THREADS)
    late = (cells["device"] != "cpu") & (own["step_host_s"] >= LAUNCH_BOUND * own["step_s"])
    remedy = remedy.mask(late & (remedy == REMEDIES["lost_imbalance"]), LATE)
    return remedy.mask((cells["n_nodes"] > 1) & (remedy == REMEDIES["lost_communication"]), BETWEEN_NODES)


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


def words_of(loss: str, row: Mapping[Any, Any], cells: pd.DataFrame) -> str:
    """Return a loss of a row in words. If any of the cells takes several nodes, the exchange has the link's name."""
    link = "between nodes" if row["n_nodes"] > 1 else "within a node"
    names_link = loss == "lost_communication" and (cells["n_nodes"] > 1).any()
    return f"{LOST_TO[loss]} {link}" if names_link else LOST_TO[loss]


def _remedy(row: Mapping[Any, Any]) -> str:
    largest = largest_loss(row)
    is_captured = not math.isnan(row["lost_data"]) and math.isnan(row["lost_compute"])
    if largest == "lost_rest" and is_captured:
        return UNDIVIDED
    return REMEDIES.get(largest, "")
