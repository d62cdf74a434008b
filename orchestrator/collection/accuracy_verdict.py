"""What a cell's test accuracy shows against that of its reference cell: equivalent, worse, better, or inconclusive."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orchestrator.collection.by_seed import Differences
from orchestrator.statistics.equivalence import Difference, power, seeds_to_settle

OF_VERDICT = ("accuracy_verdict", "accuracy_power", "accuracy_seeds_to_settle")


def add_accuracy_verdict(cells: pd.DataFrame, ok: pd.DataFrame, margin: float) -> None:
    """Add OF_VERDICT: the verdict, the power to show equivalence at this n, and the seeds that would settle it.

    The reference cell itself has none of them.
    """
    differences = Differences.of(ok, "accuracy", cells.index, cells["reference_cell_id"])
    pairs = np.minimum(differences.own.n, differences.other.n).astype(int)
    compared = (cells["reference_cell_id"] != cells["cell_id"]).to_numpy()
    tested = [
        _tested(each, margin, int(n)) if wanted else ("", np.nan, None)
        for each, n, wanted in zip(differences.tested(), pairs, compared, strict=True)
    ]
    for place, column in enumerate(OF_VERDICT):
        cells[column] = [row[place] for row in tested]
    cells["accuracy_seeds_to_settle"] = cells["accuracy_seeds_to_settle"].astype("Int64")


def _tested(difference: Difference, margin: float, n: int) -> tuple[str, float, int | None]:
    verdict = difference.verdict(margin)
    if not verdict:
        return "", np.nan, None
    chance = power(margin, difference.error * n**0.5, n)
    return verdict, chance, seeds_to_settle(difference, margin, n) if verdict == "inconclusive" else None
