"""The table of the distances between loss curves: which cells learn alike, beyond where they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, islice
from operator import itemgetter

import numpy as np
import pandas as pd

from orchestrator.statistics.curve_distance import between_cells, between_seeds
from orchestrator.statistics.means import Array
from orchestrator.text import figures
from orchestrator.text.rows import name, varying
from orchestrator.text.table import TextTable
from sweeps.status import Status

FEWEST_EPOCHS = 5
"""Of a curve: fewer are points."""

MOST_CELLS = 10
"""Of which each is compared with each; of more, each with the one at its reference batch."""

MOST_PAIRS = 100
"""That are compared: each takes some 10 ms."""

_ABOUT = (
    "The mean over the epochs of |ln loss − ln loss| between trials of the same seed: 0.05 is a difference of 5%."
    " Brackets: 95% intervals over the seeds. By chance: the same between different seeds of one cell, of the two"
    " the larger: cells whose distance is below it learn alike as far as seeds can tell."
)


def distance_table(trials: pd.DataFrame, cells: pd.DataFrame, curves: pd.DataFrame) -> TextTable | None:
    """A row for each pair of cells, nearest first; None where there are no curves of several seeds to compare."""
    pairs = list(islice(_pairs(cells[cells["n_ok"] > 1]), MOST_PAIRS))
    compared = {cell_id for pair in pairs for cell_id in pair}
    losses = _losses(trials[trials["cell_id"].isin(list(compared))], curves)
    differing = varying(cells)
    known = cells[cells["cell_id"].isin(list(losses))]
    names = {row["cell_id"]: name(row, differing) for row in known.to_dict("records")}
    both = [pair for pair in pairs if losses.keys() >= set(pair)]
    found = [row for one, other in both if (row := _row(one, other, losses, names))]
    if not found:
        return None
    frame = pd.DataFrame([row for _, row in sorted(found, key=itemgetter(0))])
    remarks = [f"Only the first {MOST_PAIRS} pairs are compared."] if len(pairs) == MOST_PAIRS else []
    title = "Distance between loss curves"
    return TextTable(name="loss_distance", title=title, about=[_ABOUT], frame=frame, remarks=remarks)


def _losses(trials: pd.DataFrame, curves: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
    """Of each cell with several ok seeds: a row a seed, a column an epoch."""
    ok = trials.loc[trials["status"] == Status.OK.value, ["trial_id", "cell_id", "seed"]]
    compared = curves.loc[curves["trial_id"].isin(ok["trial_id"]), ["trial_id", "epoch", "loss"]]
    rows = compared.astype({"trial_id": "object"}).merge(ok, on="trial_id")
    found = {}
    for cell_id, own in rows.groupby("cell_id", sort=False):
        table = own.pivot_table(index="seed", columns="epoch", values="loss", aggfunc="last")
        if len(table) > 1 and len(table.columns) >= FEWEST_EPOCHS:
            found[str(cell_id)] = table
    return found


def _pairs(cells: pd.DataFrame) -> Iterator[tuple[str, str]]:
    ids = list(cells["cell_id"])
    if len(ids) <= MOST_CELLS:
        yield from combinations(ids, 2)
        return
    for own, reference in zip(ids, cells["reference_cell_id"], strict=True):
        if own != reference and reference in ids:
            yield reference, own


def _row(
    one: str, other: str, losses: Mapping[str, pd.DataFrame], names: Mapping[str, str]
) -> tuple[float, dict[str, str]] | None:
    first, second = losses[one].align(losses[other], join="inner")
    if len(first) < 2 or len(first.columns) < FEWEST_EPOCHS:
        return None
    found = between_cells(_values(first), _values(second))
    point, lo, hi = (float(getattr(found, end)[0]) for end in ("point", "lo", "hi"))
    chance = max(between_seeds(_values(losses[each])) for each in (one, other))
    if np.isnan(point) or np.isnan(chance):
        return None
    return point, {
        "cell": names[one],
        "and": names[other],
        "distance": figures.with_interval(point, max(0.0, lo), hi, figures.number),
        "by chance": figures.number(chance),
        "epochs": str(len(first.columns)),
        "seeds": str(len(first)),
    }


def _values(table: pd.DataFrame) -> Array:
    return np.asarray(table.to_numpy(dtype="float64"))
