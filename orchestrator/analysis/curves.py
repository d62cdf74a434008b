"""Reads the learning curves of a sweep as one frame with a row per epoch; a million rows take seconds.

Trials write their curves while they run (`store.trial_files`); damaged rows are left out and become problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.store.results import Problem
from orchestrator.store.results_folder import METRICS, ResultsFolder
from orchestrator.store.trial_files import parsed
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

_TOGETHER = 64
"""How many files are parsed at once; one by one if any of them is damaged."""

_EXPECTED = ("epoch", "loss", "val_accuracy")
"""Figures that must be numbers."""


def curves_frame(folder: ResultsFolder, trial_ids: Iterable[str]) -> tuple[pd.DataFrame, list[Problem]]:
    """Return the rows of these trials: `trial_id` (a category), `epoch`, and every numeric figure that any row has.

    Figures that a row lacks are NaN. The second value holds a problem for everything that could not be read. A missing
    file is a problem; an empty one is not, because its trial ended before its first epoch.
    """
    names: list[str] = []
    parts: list[Columns] = []
    lengths: list[int] = []
    problems: list[Problem] = []
    if not folder.trials.is_dir():  # `store.history` reports this once
        return _frame(names, lengths, parts), problems
    ids = list(trial_ids)
    for some in (ids[start : start + _TOGETHER] for start in range(0, len(ids), _TOGETHER)):
        contents = [_content(folder, trial_id) for trial_id in some]
        together = _together([content for content in contents if isinstance(content, bytes)])
        if together and not any(isinstance(content, str) for content in contents):
            columns, counts = together
            names += some
            lengths += counts
            parts.append(columns)
            continue
        for trial_id, content in zip(some, contents, strict=True):
            columns, damages = _alone(content)
            where = f"{folder.trials.name}/{trial_id}/{METRICS}"
            problems += [Problem(where=where, what=damage) for damage in damages]
            if columns:
                names.append(trial_id)
                lengths.append(len(columns["epoch"]))
                parts.append(columns)
    more = len(problems) - _MOST_PROBLEMS
    if more > 0:  # a folder may lack all its curves
        problems = problems[:_MOST_PROBLEMS]
        problems.append(Problem(where="trials", what=f"{more} more curves are missing or damaged"))
    return _frame(names, lengths, parts), problems


def _content(folder: ResultsFolder, trial_id: str) -> bytes | str:
    """Return the contents of the file, or why it cannot be read."""
    try:
        path = folder.metrics(trial_id)
        if not path.is_file():
            return "is not a file" if path.exists() else "there is no such file"
        if path.stat().st_size > MOST_BYTES:
            return f"larger than {MOST_BYTES >> 20} MB"
        return path.read_bytes()
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)


def _together(contents: Sequence[bytes]) -> tuple[Columns, list[int]] | None:
    """Return the numeric columns of several files, and the number of rows of each; None unless all rows are valid.

    Arrow parses four times as fast as `json`, but does not say which line is wrong.
    """
    from pyarrow import BufferReader, json, lib, types

    whole = b"".join(content if content.endswith(b"\n") or not content else content + b"\n" for content in contents)
    counts = [content.count(b"\n") + (bool(content) and not content.endswith(b"\n")) for content in contents]
    if whole.count(b"{") > sum(counts) or b"[[" in whole:  # Arrow's parser is recursive, and crashes at some depth
        return None
    if any(strange in whole for strange in (b"\r", b"\n\n")) or not all(
        content[:1] in (b"{", b"") for content in contents
    ):
        return None
    try:
        table = json.read_json(BufferReader(whole), json.ReadOptions(block_size=len(whole) + 1, use_threads=False))
    except lib.ArrowException:
        return None
    numeric = [
        field.name
        for field in table.schema
        if types.is_integer(field.type) or types.is_floating(field.type) or types.is_boolean(field.type)
    ]
    expected = {name for name in _EXPECTED if name in table.column_names} | {"epoch"}
    if table.num_rows != sum(counts) or not expected <= set(numeric) or table.column("epoch").null_count:
        return None
    return {name: table.column(name).cast("float64", safe=False).to_numpy() for name in numeric}, counts


def _alone(content: bytes | str) -> tuple[Columns, list[str]]:
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


def _frame(names: Sequence[str], lengths: Sequence[int], parts: Sequence[Columns]) -> pd.DataFrame:
    """Return the frame. `lengths` has the rows of each trial; `parts` the columns of one or several trials."""
    codes = np.repeat(np.arange(len(names)), lengths)
    columns: dict[str, Any] = {"trial_id": pd.Categorical.from_codes(codes, categories=pd.Index(list(names)))}
    starts = np.cumsum([0, *(len(part["epoch"]) for part in parts)])
    for name in dict.fromkeys(["epoch", "loss", *(name for part in parts for name in part)]):
        column = np.full(int(starts[-1]), np.nan)
        for start, end, part in zip(starts, starts[1:], parts, strict=False):
            if name in part:
                column[start:end] = part[name]
        columns[name] = column
    return one_row_an_epoch(pd.DataFrame(columns))
