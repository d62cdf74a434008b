"""The table of distances between loss curves: which cells learn alike throughout, not only at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, islice
from operator import itemgetter

import numpy as np
import pandas as pd

from orchestrator.analysis.curves import LossCurves
from orchestrator.statistics.curve_distance import between_cells, between_seeds
from orchestrator.text import figures
from orchestrator.text.rows import cell_label, varying
from orchestrator.text.table import TextTable

MOST_CELLS = 10
"""Of which each is compared with each; of more, each with the one at its reference batch."""

MOST_PAIRS = 100
"""The most pairs that are compared: each takes some 10 ms."""

_ABOUT = (
    "The mean over the epochs of |ln loss − ln loss| between trials of the same seed: 0.05 is a difference of 5%."
    " Brackets: 95% intervals over the seeds. By chance: the same distance between different seeds of one cell (mean of"
    " the two cells). Cells whose distance is not above it cannot be told apart with these seeds."
)


def distance_table(cells: pd.DataFrame, by_cell: LossCurves) -> TextTable | None:
    """A row for each pair of cells, nearest first; None if there are no curves of several seeds to compare."""
    pairs = list(islice(_pairs(cells[cells["n_ok"] > 1]), MOST_PAIRS))
    differing = varying(cells)
    known = cells[cells["cell_id"].isin(list(by_cell))]
    names = {row["cell_id"]: cell_label(row, differing) for row in known.to_dict("records")}
    both = [pair for pair in pairs if by_cell.keys() >= set(pair)]
    found = [row for one, other in both if (row := _row(one, other, by_cell, names))]
    if not found:
        return None
    frame = pd.DataFrame([row for _, row in sorted(found, key=itemgetter(0))])
    remarks = [f"Only the first {MOST_PAIRS} pairs are compared."] if len(pairs) == MOST_PAIRS else []
    title = "Distance between loss curves"
    return TextTable(name="loss_distance", title=title, about=[_ABOUT], frame=frame, remarks=remarks)


def _pairs(cells: pd.DataFrame) -> Iterator[tuple[str, str]]:
    ids = list(cells["cell_id"])
    if len(ids) <= MOST_CELLS:
        yield from combinations(ids, 2)
        return
    for own, reference in zip(ids, cells["reference_cell_id"], strict=True):
        if own != reference and reference in ids:
            yield reference, own


def _row(one: str, other: str, by_cell: LossCurves, names: Mapping[str, str]) -> tuple[float, dict[str, str]] | None:
    seeds = [seed for seed in by_cell[one] if seed in by_cell[other]]
    first, second = ([by_cell[cell_id][seed] for seed in seeds] for cell_id in (one, other))
    found = between_cells(first, second)
    point, lo, hi = (float(getattr(found, end)[0]) for end in ("point", "lo", "hi"))
    chance = float(np.mean([between_seeds(list(by_cell[each].values())) for each in (one, other)]))
    if len(seeds) < 2 or np.isnan(point) or np.isnan(chance):
        return None
    return point, {
        "cell": names[one],
        "and": names[other],
        "distance": figures.with_interval(point, max(0.0, lo), hi, figures.number),
        "by chance": figures.number(chance),
        "epochs": str(min(len(curve.at) for curve in [*first, *second])),
        "seeds": str(len(seeds)),
    }
