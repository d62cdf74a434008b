"""What the tables for people have in common: headings, the order and names of rows, and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator.collection import summary
from orchestrator.statistics.bootstrap import FEWEST
from orchestrator.text import figures

ALWAYS = ("gpus", "device_batch_size", "lr_rule")
"""The axes that name every cell."""

Row = Mapping[Any, Any]
"""A cell as {column: value}."""


def head(cells: pd.DataFrame, title: str) -> list[str]:
    """The heading lines: sweep, devices, and the number of seeds."""
    devices = figures.plain(", ".join(cells["device"].dropna().unique())) or "not known"
    on_cpu = "; without GPUs, gpus counts worker processes" if "cpu" in set(cells["device"]) else ""
    fewest, most = cells["n_seeds"].min(), cells["n_seeds"].max()
    seeds = f"{most} seed{'s' if most > 1 else ''}" if fewest == most else f"{fewest} to {most} seeds"
    alone = "" if most > 1 else ", so there are no intervals"
    sweep = figures.plain(cells["sweep"].iloc[0])
    return [f"# {title}: {sweep}", "", f"Device: {devices}{on_cpu}. {seeds} per cell{alone}."]


def method(cells: pd.DataFrame) -> str:
    """The method of these cells' intervals, which depends on their numbers of ok seeds."""
    seeds = cells.loc[cells["n_ok"] > 1, "n_ok"]
    if (seeds >= FEWEST).all() and len(seeds):
        return "bootstrapped"
    if (seeds >= FEWEST).any():
        return f"Student's t below {FEWEST} ok seeds, bootstrapped from there on"
    return "Student's t"


def varying(cells: pd.DataFrame) -> list[str]:
    """Axes in which the cells differ, beyond batch, gpus and LR rule; preceded by `device` if devices differ."""
    axes = [column for column in cells.columns if column not in (*summary.COLUMNS, *summary.FURTHER)]
    differing = [axis for axis in ("lr_multiplier", *axes) if cells[axis].nunique(dropna=False) > 1]
    return ["device", *differing] if cells["device"].nunique() > 1 else differing


def in_order(cells: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The cells sorted by these columns: numbers by value, names in order of first appearance."""
    ranks = {
        column: cells[column] if pd.api.types.is_numeric_dtype(cells[column]) else pd.factorize(cells[column])[0]
        for column in columns
    }
    return cells.loc[pd.DataFrame(ranks, index=cells.index).sort_values(list(columns), kind="stable").index]


def name(row: Row, differing: Sequence[str]) -> str:
    """A cell by what distinguishes it: `gpus=2, device_batch_size=32, lr_rule=linear`."""
    return named(row, [*ALWAYS, *differing])


def short_names(rows: Sequence[Row], differing: Sequence[str]) -> list[str]:
    """Short names that distinguish these cells from one another only, for titles."""
    shown = [each for each in (*ALWAYS, *differing) if len({str(row[each]) for row in rows}) > 1]
    return [named(row, shown or ALWAYS) for row in rows]


def named(row: Row, columns: Sequence[str]) -> str:
    """A cell's values in these columns."""
    return ", ".join(f"{axis(column)}={_asked(column, row[column])}" for column in columns)


def _asked(column: str, value: Any) -> Any:
    """A value as in a config: next to fractions, a frame holds whole numbers of GPUs as floats."""
    return f"{value:g}" if column == "gpus" else figures.asked(value)


def axis(column: str) -> str:
    """The name of a column's axis; axes that share a name with another column have the prefix `axes.`."""
    return column.removeprefix("axes.")


def status(row: Row) -> str:
    """`ok`, or `oom, 2 of 3 ok`."""
    if row["n_ok"] in (0, row["n_seeds"]):
        return str(row["status"])
    return f"{row['status']}, {row['n_ok']} of {row['n_seeds']} ok"


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown, every value as plain text."""
    text = table.map(figures.plain).rename(columns=figures.plain)
    return str(text.to_markdown(index=False, disable_numparse=True))
