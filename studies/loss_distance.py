"""The table of distances between loss curves: which cells train alike over all epochs, not only at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.statistics.intervals import Interval, mean_interval
from orchestrator.text import numbers
from orchestrator.text.cell_labels import cell_label, varying
from orchestrator.text.text_tables import TextTable
from studies.curve_distance import Curve, distance, distances
from sweeps.layout import is_independent
from sweeps.status import Status

MOST_CELLS = 10
"""Up to this many cells all pairs are compared; with more, each cell only with its reference cell."""

MOST_PAIRS = 100
"""The most pairs that are compared; each takes about 10 ms."""

_ABOUT = (
    "Distance: the mean over the epochs of |ln loss − ln loss| between trials of the same seed; 0.05 is a difference of"
    " 5%. Brackets: 95% intervals over the seeds. By chance: the same distance between different seeds of one cell"
    " (mean of the two cells). If the distance is not larger than that, these seeds show no difference of the cells."
)


LossCurves = Mapping[str, Mapping[Any, Curve]]
"""A curve by cell and seed."""


def loss_curves(trials: pd.DataFrame, curves: pd.DataFrame) -> LossCurves:
    """Return the curves of the ok seeds; `curves` is the frame of `curves_frame`.

    Positions are samples seen by a model, or epochs if any row does not report its samples.
    """
    # Epochs alone would not do: the last batch that an epoch drops depends on the batch size.
    ok = trials.loc[trials["status"] == Status.OK.value, ["trial_id", "cell_id", "seed", "strategy", "ranks"]]
    figures = [name for name in ("trial_id", "epoch", "samples", "loss") if name in curves]
    known = curves.loc[curves["trial_id"].isin(ok["trial_id"]) & curves["loss"].notna(), figures]
    rows = known.astype({"trial_id": "object"}).merge(ok, on="trial_id")
    by_samples = "samples" in rows and bool(rows["samples"].notna().all())
    models = np.where(rows["strategy"].map(is_independent), rows["ranks"].astype("float64"), 1.0)
    at = (rows["samples"] / models if by_samples else rows["epoch"]).to_numpy(dtype="float64")
    losses = rows["loss"].to_numpy(dtype="float64")
    by_cell: dict[str, dict[Any, Curve]] = {}
    places: Mapping[Any, Any] = rows.groupby(["cell_id", "seed"], sort=False).indices
    for (cell_id, seed), own in places.items():
        curve = Curve.of(at[own], losses[own])
        if len(curve.at):
            by_cell.setdefault(str(cell_id), {})[seed] = curve
    return by_cell


def write(tables: Path) -> None:
    """Write `loss_distance.md` among a sweep's tables, unless it has no curves, or none of two seeds."""
    if not (tables / "curves.parquet").exists():
        return
    trials, cells, curves = (pd.read_parquet(tables / f"{name}.parquet") for name in ("trials", "summary", "curves"))
    table = distance_table(cells, loss_curves(trials, curves))
    if table is not None:
        (tables / "loss_distance.md").write_text(table.document(table.title))


def distance_table(cells: pd.DataFrame, by_cell: LossCurves) -> TextTable | None:
    """Return a row for each pair of cells, nearest first; None without two cells that have curves of two seeds."""
    repeated = cells[cells["n_ok"] > 1]
    ids = list(repeated["cell_id"])
    every: Iterable[tuple[str, str]] = combinations(ids, 2)
    if len(ids) > MOST_CELLS:
        own_and_reference = zip(ids, repeated["reference_cell_id"], strict=True)
        every = ((reference, own) for own, reference in own_and_reference if own != reference and reference in ids)
    pairs = list(islice(every, MOST_PAIRS))
    differing = varying(cells)
    known = cells[cells["cell_id"].isin(list(by_cell))]
    names = {row["cell_id"]: cell_label(row, differing) for row in known.to_dict("records")}
    both = [pair for pair in pairs if by_cell.keys() >= set(pair)]
    rows = [row for one, other in both if (row := _row(one, other, by_cell, names))]
    if not rows:
        return None
    frame = pd.DataFrame([row for _, row in sorted(rows, key=itemgetter(0))])
    remarks = [f"Only the first {MOST_PAIRS} pairs are compared."] if len(pairs) == MOST_PAIRS else []
    title = "Distance between loss curves"
    return TextTable(name="loss_distance", title=title, about=[_ABOUT], frame=frame, remarks=remarks)


def between_cells(ones: Sequence[Curve | None], others: Sequence[Curve | None]) -> Interval:
    """Return the mean distance of pairs with the same seed, with its interval; arrays of one element."""
    return mean_interval(distances(ones, others)[None, :])


def between_seeds(curves: Sequence[Curve | None]) -> float:
    """Return the mean distance between different seeds of one cell; NaN for fewer than two."""
    pairs = np.array([distance(one, other) for one, other in combinations(curves, 2)])
    known = pairs[~np.isnan(pairs)]
    return float(known.mean()) if len(known) else float("nan")


def _row(one: str, other: str, by_cell: LossCurves, names: Mapping[str, str]) -> tuple[float, dict[str, str]] | None:
    """Return the distance of two cells and its row; None if they share fewer than two seeds."""
    seeds = [seed for seed in by_cell[one] if seed in by_cell[other]]
    first, second = ([by_cell[cell_id][seed] for seed in seeds] for cell_id in (one, other))
    interval = between_cells(first, second)
    point, lo, hi = (float(ends[0]) for ends in (interval.point, interval.lo, interval.hi))
    chance = float(np.mean([between_seeds(list(by_cell[cell_id].values())) for cell_id in (one, other)]))
    if len(seeds) < 2 or np.isnan(point) or np.isnan(chance):
        return None
    return point, {
        "cell": names[one],
        "and": names[other],
        "distance": numbers.with_interval(point, max(0.0, lo), hi, numbers.number),
        "by chance": numbers.number(chance),
        "epochs": str(min(len(curve.at) for curve in [*first, *second])),
        "seeds": str(len(seeds)),
    }
