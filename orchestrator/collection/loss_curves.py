"""The loss curves of a sweep's cells, one per seed, at positions that are comparable across batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.statistics.curve_distance import Curve
from sweeps.gang import INDEPENDENT
from sweeps.status import Status

LossCurves = Mapping[str, Mapping[Any, Curve]]
"""By cell and seed."""


def loss_curves(trials: pd.DataFrame, curves: pd.DataFrame) -> LossCurves:
    """The curves of the ok seeds; `curves` is the frame of `curves.curves_frame`.

    Positions are samples seen by a model, because the last batch that an epoch drops depends on the batch size; epochs
    if any row does not report its samples.
    """
    ok = trials.loc[trials["status"] == Status.OK.value, ["trial_id", "cell_id", "seed", "strategy", "ranks"]]
    figures = [name for name in ("trial_id", "epoch", "samples", "loss") if name in curves]
    known = curves.loc[curves["trial_id"].isin(ok["trial_id"]) & curves["loss"].notna(), figures]
    rows = known.astype({"trial_id": "object"}).merge(ok, on="trial_id")
    by_samples = "samples" in rows and bool(rows["samples"].notna().all())
    models = np.where(rows["strategy"] == INDEPENDENT, rows["ranks"].astype("float64"), 1.0)
    at = (rows["samples"] / models if by_samples else rows["epoch"]).to_numpy(dtype="float64")
    losses = rows["loss"].to_numpy(dtype="float64")
    found: dict[str, dict[Any, Curve]] = {}
    places: Mapping[Any, Any] = rows.groupby(["cell_id", "seed"], sort=False).indices
    for (cell_id, seed), own in places.items():
        curve = Curve.of(at[own], losses[own])
        if len(curve.at):
            found.setdefault(str(cell_id), {})[seed] = curve
    return found
