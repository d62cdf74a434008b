"""The cells that are not ok, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from orchestrator.text import figures
from orchestrator.text.rows import ALWAYS, name, named, status
from sweeps.status import Status

_FEWEST_TOGETHER = 3
"""Fewer cells are listed one by one."""


def not_ok(cells: pd.DataFrame, differing: Sequence[str]) -> list[str]:
    """A line for each cell that is not ok; one line where a reason holds for all cells of some values.

    `gpus=2, device_batch_size=32, lr_rule=linear: oom; CUDA out of memory`, or
    `all 14 cells with gpus=4: infeasible; …`.
    """
    columns = [column for column in (*ALWAYS, *differing) if cells[column].nunique(dropna=False) > 1]
    asked = cells[columns].map(lambda value: str(figures.asked(value)))
    bad = cells[cells["status"] != Status.OK.value]
    reasons = pd.Series([f"{status(row)}; {row['note']}" for row in bad.to_dict("records")], bad.index, dtype="object")
    lines: list[str] = []
    for reason, group in reasons.groupby(reasons, sort=False):
        for part in _parts(asked, asked.loc[group.index]):
            if len(part) < _FEWEST_TOGETHER or not _are_all(asked, part, _shared(part)):
                lines += [f"{name(row, differing)}: {reason}" for row in cells.loc[part.index].to_dict("records")]
                continue
            values = _telling(asked, part)
            which = f" with {named(cells.loc[part.index[0]].to_dict(), values)}" if values else ""
            lines.append(f"all {len(part)} cells{which}: {reason}")
    return lines


def _parts(asked: pd.DataFrame, group: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The group, divided by a column where only its parts are all the cells of some values."""
    shared = _shared(group)
    if not _are_all(asked, group, shared):
        columns = [str(column) for column in group if column not in shared]
        for column in sorted(columns, key=lambda each: group[each].nunique()):
            parts = [part for _, part in group.groupby(column, sort=False)]
            if len(parts) < len(group) and all(_are_all(asked, part, _shared(part)) for part in parts):
                yield from parts
                return
    yield group


def _shared(group: pd.DataFrame) -> list[str]:
    """The columns in which all of these cells have one value."""
    return [str(column) for column in group if group[column].nunique(dropna=False) == 1]


def _telling(asked: pd.DataFrame, group: pd.DataFrame) -> list[str]:
    """Of the shared columns those that tell the group from all other cells, the first ones preferred."""
    kept = _shared(group)
    for column in reversed(kept):
        fewer = [each for each in kept if each != column]
        kept = fewer if _are_all(asked, group, fewer) else kept
    return kept


def _are_all(asked: pd.DataFrame, group: pd.DataFrame, columns: Sequence[str]) -> bool:
    """Whether no other cell has the values that these share in the columns."""
    alike = (asked[list(columns)] == group[list(columns)].iloc[0]).all(axis="columns")
    return int(alike.sum()) == len(group)
