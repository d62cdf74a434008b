"""Why not linear: what a cell's lost efficiency went into, and what would help against the largest part."""

from __future__ import annotations

import numpy as np
import pandas as pd

PARTS = ("data", "host", "communication", "imbalance", "compute")
"""Of a step, as the trainable tells them: `step_data_s` and so on."""

LOST = (*(f"lost_{part}" for part in PARTS), "lost_rest")
OF_SCALING = ("mfu", *LOST, "remedy")
"""Shares of 1, which with the efficiency add up to 1; empty for a cell that is its own baseline."""

REMEDIES = {
    "lost_data": "waiting for data: a loader per rank, more of its workers, or trainable.input=resident",
    "lost_host": "launching work: a larger batch per device, trainable.cuda_graph=on, or trainable.compile=default",
    "lost_communication": "exchanging gradients: a larger batch per device, or more grad_accum_steps",
    "lost_imbalance": "waiting for the slowest rank: strategy=ddp_unequal gives each a share by its speed",
    "lost_compute": "slower passes: a larger batch per device, or fewer processes that share cores and memory",
    "lost_rest": "nothing that the loop's clocks see: profile a step",
}
NOTEWORTHY = 0.02
"""Below it nothing is worth a remedy."""


def add_scaling_loss(cells: pd.DataFrame, ok: pd.DataFrame) -> None:
    """Add OF_SCALING, from the mean parts of the steps of the cells' ok seeds; the cells have their efficiency.

    With T the time of a step and e the efficiency, an ideal step would take e·T; a part of the baseline's step would
    take the same share of that as of its own. What a part takes beyond it, over T, is lost to the part; what is lost
    beyond all parts is the rest.
    """
    columns = [f"step_{part}_s" for part in PARTS]
    known = [column for column in ("mfu", "step_s", *columns) if column in ok]
    numbers = ok[known].apply(pd.to_numeric, errors="coerce").astype("float64")
    means = numbers.groupby(ok["cell_id"]).mean().reindex(columns=["mfu", "step_s", *columns])
    own, baseline = means.reindex(cells.index), means.reindex(cells["baseline_cell_id"]).set_axis(cells.index)
    cells["mfu"] = own["mfu"]
    several = (cells["baseline_cell_id"] != cells["cell_id"]) & (cells["gpus"] > 1)
    for part, column in zip(PARTS, columns, strict=True):
        ideal = baseline[column] / baseline["step_s"] * cells["efficiency"]
        cells[f"lost_{part}"] = (own[column] / own["step_s"] - ideal).where(several)
    named = cells[[f"lost_{part}" for part in PARTS]].sum(axis="columns", skipna=False)
    cells["lost_rest"] = (1 - cells["efficiency"] - named).where(several)
    cells["remedy"] = [_remedy(row) for row in cells[list(LOST)].itertuples(index=False)]


def _remedy(lost: tuple[float, ...]) -> str:
    values = np.asarray(lost, dtype="float64")
    if np.isnan(values).any() or values.max() < NOTEWORTHY:
        return ""
    return REMEDIES[LOST[int(values.argmax())]]
