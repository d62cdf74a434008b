"""What there is to say about each cell of a summary, in its `note`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from orchestrator.collection.baseline import MIXED
from orchestrator.collection.timed import is_invalid
from sweeps.status import Status


def cell_notes(cells: pd.DataFrame, trials: pd.DataFrame) -> list[str]:
    """What there is to say about each cell, worst first."""
    spoiled_by_baseline = (
        ~is_invalid(cells["timing_valid"])
        & is_invalid(cells["timing_valid"].reindex(cells["baseline_cell_id"])).to_numpy()
    )
    parts = (
        _seed_notes(trials).reindex(cells.index).fillna(""),
        np.where(cells[MIXED], "seeds ran on different device models (cluster.gpu_type chooses one)", ""),
        [
            f"target reached by {reached} of {n_ok} seeds" if 0 < reached < n_ok else ""
            for reached, n_ok in zip(cells["n_reached"], cells["n_ok"], strict=True)
        ],
        [
            f"timing of {timed} of {n_ok} ok seeds: the others' is not valid" if timed < n_ok else ""
            for timed, n_ok in zip(cells["n_timed"], cells["n_ok"], strict=True)
        ],
        np.where(cells["speedup_paired"].eq(False).fillna(False), "not paired: other ok seeds than the baseline's", ""),
        np.where(spoiled_by_baseline, "the baseline's timing is not valid", ""),
    )
    return ["; ".join(filter(None, note)) for note in zip(*parts, strict=True)]


def _seed_notes(trials: pd.DataFrame) -> pd.Series[Any]:
    """For each cell, a note of each status of its seeds, worst first: `1 of 3 seeds oom: CUDA out of memory`."""
    noted = trials[["cell_id", "status"]].assign(
        order=trials["status"].map(list(Status).index),
        size=trials.groupby("cell_id")["status"].transform("size"),
        note=trials["note"].where(trials["note"] != ""),
    )
    ends = noted.groupby(["cell_id", "order"]).agg(
        status=("status", "first"), note=("note", "first"), count=("status", "size"), size=("size", "first")
    )
    of_seeds = [_seed_note(*row) for row in ends.fillna({"note": ""}).itertuples(index=False)]
    joined = pd.Series(of_seeds, index=ends.index, dtype="object").groupby("cell_id")
    return joined.agg(lambda notes: "; ".join(filter(None, notes)))


def _seed_note(status: str, note: str, count: int, size: int) -> str:
    if status == Status.OK.value or count == size:
        return note
    return f"{count} of {size} seeds {status}" + (f": {note}" if note else "")
