"""Reads the learning curves of a sweep as one frame with a row per epoch; a million rows take ten seconds.

Trials write their curves while they run (`store.curve_file`); damaged rows are left out and become problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.store.curve_file import parsed
from orchestrator.store.results import Problem
from orchestrator.store.results_folder import METRICS, ResultsFolder
from sweeps.status import Status

WITH_CURVE = (Status.OK.value, Status.DIVERGED.value, Status.TIMEOUT.value)
"""The statuses of trials whose curve is read; the others have none, or one that says nothing about their cell."""


def one_row_an_epoch(rows: pd.DataFrame) -> pd.DataFrame:
    """Join consecutive rows of a trial that have the same epoch and do not contradict one another.

    Hugging Face's Trainer, for example, reports the loss of an epoch first, and its evaluation later.
    """
    # Here, and not where rows are received: early stopping must not wait for the next epoch.
    goes_on = (rows["trial_id"].cat.codes.diff() == 0) & (rows["epoch"].diff() == 0)
    if not goes_on.any():
        return rows
    stretch = (~goes_on).cumsum()
    several = stretch.isin(stretch[goes_on])
    groups = rows[several].groupby(stretch[several])
    figures = groups[[name for name in rows.columns if name not in ("trial_id", "epoch")]]
    joinable = (figures.nunique() <= 1).all(axis="columns")
    joined = figures.first()[joinable]
    kept = ~stretch.isin(joined.index) | ~goes_on
    merged = rows[kept].copy()
    first = stretch[kept].isin(joined.index)
    merged.loc[first, joined.columns] = joined.to_numpy()
    return merged.reset_index(drop=True)


Columns = dict[str, npt.NDArray[np.float64]]

MOST_BYTES = 1 << 28
"""Maximum size of one trial's file in bytes; a larger file is not a learning curve."""

_MOST_PROBLEMS = 20
"""How many problems are listed one by one."""

_EXPECTED = ("epoch", "loss", "val_accuracy")
"""Figures that must be numbers."""


def curves_frame(folder: ResultsFolder, trial_ids: Iterable[str]) -> tuple[pd.DataFrame, list[Problem]]:
    """Return the rows of these trials: `trial_id` (a category), `epoch`, and every numeric figure that any row has.

    Figures that a row lacks are NaN. The second value holds a problem for everything that could not be read, and
    one for all trials without a folder. A missing file is a problem; an empty one is not, because its trial ended
    before its first epoch.
    """
    names: list[str] = []
    parts: list[Columns] = []
    problems: list[Problem] = []
    if not folder.trials.is_dir():  # `store.results` reports this once
        return _frame(names, parts), problems
    absent = 0
    for trial_id in trial_ids:
        content = _content(folder, trial_id)
        if content is None:
            absent += 1
            continue
        columns, damages = _columns_of(content)
        where = f"{folder.trials.name}/{trial_id}/{METRICS}"
        problems += [Problem(where=where, what=damage) for damage in damages]
        if columns:
            names.append(trial_id)
            parts.append(columns)
    more = len(problems) - _MOST_PROBLEMS
    if more > 0:  # a folder may lack all its curves
        problems = problems[:_MOST_PROBLEMS]
        problems.append(Problem(where="trials", what=f"{more} more curves are missing or damaged"))
    if absent:
        what = f"this copy of the results lacks the folders of some trials: {absent}"
        problems.append(Problem(label="Curves", what=what))
    return _frame(names, parts), problems


def _content(folder: ResultsFolder, trial_id: str) -> bytes | str | None:
    """Return the contents of the file, or why it cannot be read; None without a folder of the trial."""
    try:
        path = folder.metrics(trial_id)
        if not path.parent.exists():
            return None
        if not path.is_file():
            return "is not a file" if path.exists() else "there is no such file"
        if path.stat().st_size > MOST_BYTES:
            return f"larger than {MOST_BYTES >> 20} MB"
        return path.read_bytes()
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)


def _columns_of(content: bytes | str) -> tuple[Columns, list[str]]:
    """Return the columns of one file, and its errors."""
    if isinstance(content, str):
        return {}, [content]
    rows, damages = parsed(content)
    lines = len(rows) + len(damages)
    unreadable = f"{len(damages)} of {lines} rows cannot be read; left out" if damages else ""
    columns, odd = _columns(rows)
    return columns, [damage for damage in (unreadable, odd) if damage]


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[Columns, str]:
    """Return the numeric columns of rows, and an error about columns that should be numbers and are not."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns: Columns = {}
    odd: list[str] = []
    for name in names:
        try:
            column = np.array([row.get(name) for row in rows], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            odd.append(name)
            continue
        if column.ndim == 1:
            columns[name] = column
        else:  # lists of numbers in every row
            odd.append(name)
    wrong = [name for name in odd if name in _EXPECTED]
    if rows and "epoch" not in columns:
        return {}, "its rows have no epoch; left out"
    return columns, f"{', '.join(wrong)}: not numbers; left out" if wrong else ""


def _frame(names: Sequence[str], parts: Sequence[Columns]) -> pd.DataFrame:
    """Return the frame of these trials; `parts` has the columns of each."""
    lengths = [len(part["epoch"]) for part in parts]
    codes = np.repeat(np.arange(len(names)), lengths)
    columns: dict[str, Any] = {"trial_id": pd.Categorical.from_codes(codes, categories=pd.Index(list(names)))}
    starts = np.cumsum([0, *lengths])
    for name in dict.fromkeys(["epoch", "loss", *(name for part in parts for name in part)]):
        column = np.full(int(starts[-1]), np.nan)
        for start, end, part in zip(starts, starts[1:], parts, strict=False):
            if name in part:
                column[start:end] = part[name]
        columns[name] = column
    return one_row_an_epoch(pd.DataFrame(columns))
