"""Lines about the cells that are not ok, in which cells with one reason share a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from orchestrator.text import numbers
from orchestrator.text.cell_labels import ALWAYS, cell_label, named, status, varying
from sweeps.status import Status

_FEWEST_TOGETHER = 3  # fewer cells are listed one by one


def not_ok(cells: pd.DataFrame, differing: Sequence[str]) -> list[str]:
    """Return a line for each cell that is not ok, or `all 14 cells with gpus=4: infeasible; …` for all such cells."""
    # Compared as text, because a frame has a missing value both for null and for an axis that a cell does not have.
    columns = [column for column in (*ALWAYS, *differing) if cells[column].nunique(dropna=False) > 1]
    values = cells[columns].map(lambda value: str(numbers.config_value(value)))
    bad = cells[cells["status"] != Status.OK.value]
    reasons = pd.Series([f"{status(row)}; {row['note']}" for row in bad.to_dict("records")], bad.index, dtype="object")
    lines: list[str] = []
    for reason, group in reasons.groupby(reasons, sort=False):
        for part in _parts(values, values.loc[group.index]):
            if len(part) < _FEWEST_TOGETHER or not _are_all(values, part, _shared(part)):
                lines += [f"{cell_label(row, differing)}: {reason}" for row in cells.loc[part.index].to_dict("records")]
                continue
            axes = _telling(values, part)
            which = f" with {named(cells.loc[part.index[0]].to_dict(), axes)}" if axes else ""
            lines.append(f"all {len(part)} cells{which}: {reason}")
    return lines


def not_ok_by_status(cells: pd.DataFrame) -> str:
    """Return `oom: 2×512 linear and 1 other cell; failed: …`; empty if every cell is ok, or none."""
    # The counts of trials say it all of a sweep in which no cell is ok.
    if not (cells["n_ok"] > 0).any():
        return ""
    differing, texts = varying(cells), []
    for worst, group in cells[cells["status"] != Status.OK.value].groupby("status", sort=False):
        more = f" and {numbers.counted(len(group) - 1, 'other cell', 'other cells')}" if len(group) > 1 else ""
        texts.append(f"{worst}: {cell_label(group.iloc[0].to_dict(), differing)}{more}")
    return "; ".join(texts)


def _parts(values: pd.DataFrame, group: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the group, or its parts by a column if only the parts are all cells of some values."""
    shared = _shared(group)
    if not _are_all(values, group, shared):
        columns = [str(column) for column in group if column not in shared]
        # The column with the fewest values gives the fewest lines.
        for column in sorted(columns, key=lambda name: group[name].nunique()):
            parts = [part for _, part in group.groupby(column, sort=False)]
            if len(parts) < len(group) and all(_are_all(values, part, _shared(part)) for part in parts):
                yield from parts
                return
    yield group


def _shared(group: pd.DataFrame) -> list[str]:
    """Return the columns in which all of these cells have one value."""
    return [str(column) for column in group if group[column].nunique(dropna=False) == 1]


def _telling(values: pd.DataFrame, group: pd.DataFrame) -> list[str]:
    """Return the fewest shared columns that distinguish the group from all other cells, the first ones preferred."""
    kept = _shared(group)
    # From the last one, so that the axes that name every cell remain.
    for column in reversed(kept):
        fewer = [other for other in kept if other != column]
        kept = fewer if _are_all(values, group, fewer) else kept
    return kept


def _are_all(values: pd.DataFrame, group: pd.DataFrame, columns: Sequence[str]) -> bool:
    """Return whether the group is all cells with its values in these columns."""
    alike = (values[list(columns)] == group[list(columns)].iloc[0]).all(axis="columns")
    return int(alike.sum()) == len(group)
