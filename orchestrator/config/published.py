"""`sweep.published`: figures published by others, shown beside the measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeps.axes import is_number
from sweeps.errors import unknown

Figure = float | tuple[float, float]
"""A number, or the smallest and largest of several."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the published table, and the matching column of `summary.csv`."""

    title: str
    """Heading, with the unit."""
    column: str
    factor: float = 1.0
    """The measured figure is multiplied by this …"""
    times: str | None = None
    """… and by this further column of `summary.csv`."""
    epochs: int | None = None
    """The published figure is for this many epochs; a figure after fewer is marked as such."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the published table."""

    label: str
    cell: Mapping[str, Any] | None = None
    """The measured cells to compare with, as {axis: value}; None if nothing here is comparable."""
    status: str = "ok"
    """How it ended: `ok`, `oom`, …"""
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A table published by others."""

    source: str
    columns: Mapping[str, Column]
    rows: Sequence[Row]

    @staticmethod
    def of(config: Mapping[str, Any]) -> Published:
        """Build from a config that has passed `published_mistakes`."""
        rows = [
            Row(**{**row, "figures": {name: _figure(value) for name, value in (row.get("figures") or {}).items()}})
            for row in config["rows"]
        ]
        columns = {name: Column(**column) for name, column in config["columns"].items()}
        return Published(source=config["source"], columns=columns, rows=rows)


def published_errors(config: Any) -> Iterator[str]:
    """Yield a line for everything that is wrong with the table in `sweep.published`."""
    if not isinstance(config, Mapping) or set(config) != {"source", "columns", "rows"}:
        yield "sweep.published needs source, columns and rows"
        return
    for name, column in config["columns"].items():
        yield from _keys(f"columns.{name}", column, Column, needed=("title", "column"))
    for number, row in enumerate(config["rows"]):
        where = f"rows[{number}]"
        yield from _keys(where, row, Row, needed=("label",))
        for name, value in (row.get("figures") or {}).items():
            if name not in config["columns"]:
                yield unknown(f"column in sweep.published.{where}.figures:", name, config["columns"])
            if not _is_figure(value):
                yield f"sweep.published.{where}.figures.{name} must be a number or [smallest, largest], not {value!r}"


def _keys(where: str, given: Any, kind: type, needed: tuple[str, ...]) -> Iterator[str]:
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    if not isinstance(given, Mapping) or not set(needed) <= set(given) or not set(given) <= set(known):
        yield f"sweep.published.{where} has the keys {', '.join(known)} (needed: {', '.join(needed)}), not {given!r}"


def _is_figure(value: Any) -> bool:
    return is_number(value) or (isinstance(value, list) and len(value) == 2 and all(map(is_number, value)))


def _figure(value: Any) -> Figure:
    return (value[0], value[1]) if isinstance(value, list) else value
