"""Tables as plain values: what a page shows and what it sorts by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.text.rows import Row


@dataclass(frozen=True, kw_only=True)
class Column:
    """How a row becomes one cell of a table."""

    title: str
    text: Callable[[Row], str]
    key: Callable[[Row], float | str]
    """What the rows are sorted by; NaN comes last."""
    numeric: bool = True


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table."""

    text: str
    key: float | str


@dataclass(frozen=True, kw_only=True)
class SortableTable:
    """A table of a page; columns that are empty in every row are not in it."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    more: int = 0
    """Rows that are only in the files."""
