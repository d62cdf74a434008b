"""The learning curves of a sweep as one tidy frame: a row an epoch, a million of them in seconds.

`curve` writes them while trials run; here they are read, as far as they are sound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.layout import Layout
from orchestrator.soundness import Finding

Columns = dict[str, npt.NDArray[np.float64]]

MOST_BYTES = 1 << 28
"""Of one trial's file: a larger one is not the curve of anything."""

_TOLD = 20
"""Findings that are listed one by one."""


def curves_frame(layout: Layout, trial_ids: Iterable[str]) -> tuple[pd.DataFrame, list[Finding]]:
    """The rows of these trials: `trial_id` (a category), `epoch`, and every numeric figure that any row has.

    Figures that a row lacks are NaN. The second value is what could not be read. A trial without a file is told, one
    whose file is empty is not: it ended before its first epoch.
    """
    names: list[str] = []
    parts: list[Columns] = []
    findings: list[Finding] = []
    for trial_id in trial_ids:
        where = f"{layout.trials.name}/{trial_id}/metrics.jsonl"
        try:
            rows, trouble = read_rows(layout.metrics(trial_id))
            columns, odd = _columns(rows)
        except (OSError, ValueError) as error:
            columns, trouble, odd = {}, str(getattr(error, "strerror", None) or error), ""
        findings += [Finding(where=where, what=told) for told in (trouble, odd) if told]
        if columns:
            names.append(trial_id)
            parts.append(columns)
    return _frame(names, parts), _abridged(findings)


def read_rows(path: Path) -> tuple[list[Mapping[str, Any]], str]:
    """The rows of one curve, and what is wrong with the file; OSError where it cannot be read at all."""
    if not path.is_file():
        raise OSError(0, "there is no such file" if not path.exists() else "is no file")
    if path.stat().st_size > MOST_BYTES:
        raise OSError(0, f"larger than {MOST_BYTES >> 20} MB")
    lines = path.read_bytes().splitlines()
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")  # a fifth of the time of a call a line
    except ValueError:
        rows = None
    if rows is not None and len(rows) == len(lines) and all(type(row) is dict for row in rows):
        return rows, ""
    sound = [row for row in map(_row, lines) if row is not None]
    return sound, f"{len(lines) - len(sound)} of {len(lines)} rows cannot be read; left out"


def _row(line: bytes) -> Mapping[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[Columns, str]:
    """The numeric columns of rows, and which of the others were expected to be numbers."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns: Columns = {}
    odd: list[str] = []
    for name in names:
        try:
            columns[name] = np.array([row.get(name) for row in rows], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            odd.append(name)
    wrong = [name for name in odd if name in ("epoch", "loss", "val_accuracy")]
    if rows and "epoch" not in columns:
        return {}, "its rows have no epoch; left out"
    return columns, f"{', '.join(wrong)}: not numbers; left out" if wrong else ""


def _frame(names: Sequence[str], parts: Sequence[Columns]) -> pd.DataFrame:
    lengths = [len(part["epoch"]) for part in parts]
    codes = np.repeat(np.arange(len(names)), lengths)
    columns: dict[str, Any] = {"trial_id": pd.Categorical.from_codes(codes, categories=pd.Index(list(names)))}
    total = int(sum(lengths))
    starts = np.cumsum([0, *lengths])
    for name in dict.fromkeys(["epoch", "loss", *(name for part in parts for name in part)]):
        column = np.full(total, np.nan)
        for start, length, part in zip(starts, lengths, parts, strict=False):
            if name in part:
                column[start : start + length] = part[name]
        columns[name] = column
    return pd.DataFrame(columns)


def _abridged(findings: list[Finding]) -> list[Finding]:
    """All of them, or the first ones and how many more there are: a directory may lack all its curves."""
    more = len(findings) - _TOLD
    if more <= 0:
        return findings
    return [*findings[:_TOLD], Finding(where="trials", what=f"{more} more curves are missing, or are not sound")]
