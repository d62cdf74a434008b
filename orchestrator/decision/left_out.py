"""Which cells may not be chosen, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.collection.by_seed import by_seed
from orchestrator.collection.timed import is_valid
from orchestrator.statistics.means import Moments, logs
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text import figures
from orchestrator.text.cell_in_words import in_words
from sweeps.lr_rule import SAME_AT_REFERENCE
from sweeps.status import Status

_LONGEST_NOTE = 200
"""Maximum length of a trial's note in a sentence, in characters."""

_SAME = "at the reference batch, where rules and warm-ups change nothing, and so the same training as"


@dataclass(frozen=True, kw_only=True)
class Spoiled:
    """A cell that cannot be chosen because its timing is not valid, with its result anyway."""

    cell_id: str
    name: str
    objective: float
    """Geometric mean over its seeds."""
    val_accuracy: float
    fault: Fault
    note: str
    """Why its timing is not valid."""


def remedy_of(fault: Fault, rerun: str = "all", *, unfinished: bool = False) -> str:
    """How to get a valid timing; `rerun` is the cell to run again, `unfinished` whether planned trials have not run."""
    if fault is Fault.TOO_SHORT:
        return (
            "give the trials a longer budget (budget.epochs, or the length that is set instead), or set"
            " trainable.window_s, if the trainable has that key"
        )
    if fault is Fault.SHARED:
        return "let each trial have its devices to itself (resources.timing=auto)"
    if fault is Fault.SEVERAL_MODELS:
        return "choose one device model (cluster.gpu_type)"
    if unfinished:
        return "let the sweep finish: the same command continues it, and then repeats spoiled timings"
    return f"run it again (rerun={rerun}), or with further seeds, while nothing else uses the machine"


@dataclass(frozen=True, kw_only=True)
class Eligible:
    """Which of a summary's cells may be chosen; one entry per cell."""

    kept: pd.Series[Any]
    repeats: pd.Series[Any]
    """Which are not kept because they are the same training as another one (see `_repeats`)."""
    left_out: Sequence[str]
    """A line for each reason why cells are not kept."""

    @staticmethod
    def of(cells: pd.DataFrame, trials: pd.DataFrame, measure: str, axes: Mapping[str, str]) -> Eligible:
        """`measure` names what is minimised; `axes` has the column of each axis that tells cells apart."""
        ok, skipped = (cells["status"] == status.value for status in (Status.OK, Status.SKIPPED))
        known = _known(cells, trials)
        valid = known & is_valid(cells["timing_valid"])
        timed = valid if valid.any() else known
        repeats = _repeats(cells, known, timed, axes)
        lines = [
            figures.counted(int((~ok & ~skipped).sum()), "cell is not ok", "cells are not ok"),
            figures.counted(int(skipped.sum()), "cell was skipped", "cells were skipped"),
            figures.counted(int((ok & ~known).sum()), f"cell has no {measure}", f"cells have no {measure}"),
            figures.counted(int((known & ~timed).sum()), "cell has no valid timing", "cells have no valid timing"),
            figures.counted(int((timed & repeats).sum()), f"cell is {_SAME} another one", f"cells are {_SAME} others"),
        ]
        return Eligible(kept=timed & ~repeats, repeats=repeats, left_out=[line for line in lines if line])


def _repeats(
    cells: pd.DataFrame, known: pd.Series[Any], timed: pd.Series[Any], axes: Mapping[str, str]
) -> pd.Series[Any]:
    """Whether each cell is the same training as another one: only chance would choose between the two.

    At the reference batch these rules and all warm-ups are (see `Comparison.references`). The first of such cells
    stands for all: one whose timing counts, of those one with rule `none`.
    """
    batch = cells.set_index("cell_id")["global_batch_size"]
    at_reference = cells["global_batch_size"] == batch.reindex(cells["reference_cell_id"]).to_numpy()
    alike = [column for axis, column in axes.items() if axis not in ("lr_rule", "warmup_epochs")]
    same = known & at_reference & cells["lr_rule"].isin(SAME_AT_REFERENCE)
    ranked = cells.assign(untimed=~timed, scaled=cells["lr_rule"] != "none")[same]
    found = ranked.sort_values(["untimed", "scaled"], kind="stable")
    further = found.index[found.duplicated([*alike, "device", "lr_multiplier"])]
    return pd.Series(cells.index.isin(further), index=cells.index)


def _known(cells: pd.DataFrame, trials: pd.DataFrame) -> pd.Series[Any]:
    """Whether each cell is ok and has a figure of the objective, valid or not."""
    return (cells["status"] == Status.OK.value) & cells["cell_id"].isin(trials.loc[trials["objective"] > 0, "cell_id"])


def spoiled(cells: pd.DataFrame, trials: pd.DataFrame, columns: Sequence[str]) -> list[Spoiled]:
    """Cells that may not be chosen but have a figure; `columns` distinguish them."""
    cells = cells[_known(cells, trials)]
    if cells.empty:
        return []
    ok = trials[trials["status"] == Status.OK.value]
    objectives = np.exp(Moments.of(logs(by_seed(cells["cell_id"], ok, "objective"))).mean).tolist()
    rows = zip(cells.to_dict("records"), objectives, strict=True)
    found = [
        Spoiled(
            cell_id=row["cell_id"],
            name=in_words(row, columns),
            objective=value,
            val_accuracy=row["val_accuracy"],
            fault=Fault(row["timing_fault"]),
            note=str(row["note"]).rstrip("."),
        )
        for row, value in rows
    ]
    return sorted(found, key=lambda each: each.objective)


def commonest_end(trials: pd.DataFrame) -> str:
    """How most trials ended, in a sentence, if none is ok."""
    if trials.empty or (trials["status"] == Status.OK.value).any():
        return ""
    ends = trials.groupby(["status", "note"], sort=False).size()
    (status, note), count = ends.index[int(ends.to_numpy().argmax())], int(ends.max())
    text = f"{status}: {note[:_LONGEST_NOTE]}" if note else status
    return f"{count} of {len(trials)} trials ended as {text.rstrip('.')}."
