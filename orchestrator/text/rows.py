"""Shared parts of the tables for people: headings, order and labels of cells, lines on cells not ok, text tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import tabulate

from orchestrator.analysis import summary
from orchestrator.statistics.intervals import FEWEST
from orchestrator.text import numbers
from sweeps.probe import PROBE, REPETITION
from sweeps.status import Status

ALWAYS = ("gpus", "device_batch_size", "lr_rule")  # the axes that name every cell

WORDS: Mapping[str, str] = {
    "gpus": "GPUs",
    "device_batch_size": "batch per GPU",
    "global_batch_size": "global batch",
    "lr_rule": "LR rule",
    "lr_multiplier": "LR multiplier",
}
"""Titles of columns."""

Row = Mapping[Any, Any]  # a cell as {column: value}


def head(cells: pd.DataFrame, title: str) -> list[str]:
    """Return the heading lines: sweep, devices, and the number of seeds."""
    devices = numbers.plain(", ".join(cells["device"].dropna().unique())) or "not known"
    on_cpu = "; without GPUs, gpus counts worker processes" if "cpu" in set(cells["device"]) else ""
    alone = "" if cells["n_seeds"].max() > 1 else ", so there are no intervals"
    sweep = numbers.plain(cells["sweep"].iloc[0])
    return [f"# {title}: {sweep}", "", f"Device: {devices}{on_cpu}. {seeds_in_words(cells)} per cell{alone}."]


def seeds_in_words(cells: pd.DataFrame) -> str:
    """Return `3 seeds`, or `1 to 3 seeds` where cells differ."""
    fewest, most = cells["n_seeds"].min(), cells["n_seeds"].max()
    return f"{most} seed{'s' if most > 1 else ''}" if fewest == most else f"{fewest} to {most} seeds"


def method(cells: pd.DataFrame) -> str:
    """Return the method of these cells' intervals, which depends on their numbers of ok seeds."""
    seeds = cells.loc[cells["n_ok"] > 1, "n_ok"]
    if (seeds >= FEWEST).all() and len(seeds):
        return "bootstrapped"
    if (seeds >= FEWEST).any():
        return f"Student's t below {FEWEST} ok seeds, bootstrapped from there on"
    return "Student's t"


def varying(cells: pd.DataFrame) -> list[str]:
    """Return the axes in which cells differ, without batch, GPUs and rule; `device` is first if devices differ."""
    axes = ("lr_multiplier", *summary.further_axes(cells))
    differing = [axis for axis in axes if cells[axis].nunique(dropna=False) > 1]
    return ["device", *differing] if cells["device"].nunique() > 1 else differing


def in_order(cells: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the cells sorted by these columns: numbers by value, names in order of first appearance."""
    # Names keep the order of the config, which an alphabetical order would lose.
    ranks = {
        column: cells[column] if pd.api.types.is_numeric_dtype(cells[column]) else pd.factorize(cells[column])[0]
        for column in columns
    }
    return cells.loc[pd.DataFrame(ranks, index=cells.index).sort_values(list(columns), kind="stable").index]


def cell_label(row: Row, differing: Sequence[str] = ()) -> str:
    """Return a cell's one short label: `2×128 linear, model=mlp` for 2 GPUs, 128 per GPU and the linear rule."""
    rule = f" {row['lr_rule']}" if "lr_rule" in row else ""
    label = f"{row['gpus']:g}×{numbers.fact(row['device_batch_size'])}{rule}"
    return ", ".join([label, *([named(row, differing)] if differing else [])])


_IN_LABEL = ("gpus", "device_batch_size", "global_batch_size", "lr_rule", PROBE, REPETITION)
"""Axes whose values are at the start of each label, and the marks of trials that measure another one."""


def trial_label(columns: Row) -> str:
    """Return the short label of a trial's cell, then its further axes and its seed: `2×128 linear, seed=0`."""
    others = {axis: value for axis, value in columns["axes"].items() if axis not in _IN_LABEL}
    return cell_label({**columns, **others}, list(others))


def named(row: Row, columns: Sequence[str]) -> str:
    """Return a cell's values in these columns."""
    values = {column: row[column] for column in columns}
    if "gpus" in values:  # next to fractions, a frame holds whole numbers of GPUs as floats
        values["gpus"] = f"{values['gpus']:g}"
    return ", ".join(f"{axis(column)}={numbers.fact(numbers.config_value(value))}" for column, value in values.items())


def axis(column: str) -> str:
    """Return the name of a column's axis; axes that share a name with another column have the prefix `axes.`."""
    return column.removeprefix("axes.")


def short_names(columns: Sequence[str]) -> dict[str, str]:
    """Return the last parts of the axes' names by column, where they are unambiguous: `precision`."""
    last = {column: axis(column).rpartition(".")[2] for column in columns}
    return {column: name if list(last.values()).count(name) == 1 else axis(column) for column, name in last.items()}


def throughput_of(frame: pd.DataFrame) -> tuple[str, str]:
    """Return unit and column of the throughput of cells or trials: tokens where they are counted, else samples."""
    counted = frame["tokens_per_s"].notna().any()
    return ("tokens/s", "tokens_per_s") if counted else ("samples/s", "samples_per_s")


def figure(
    row: Row, column: str, form: numbers.Format = numbers.number, sign: str = "", *, interval: bool = True
) -> str:
    """Return a row's value of a column, with its interval if it has one; empty if it was not measured."""
    values = [row.get(column), *(row.get(f"{column}{end}") if interval else None for end in ("_lo", "_hi"))]
    point, lo, hi = (math.nan if value is None or pd.isna(value) else float(value) for value in values)
    return numbers.with_interval(point, lo, hi, form, sign)


def timed_figure(
    row: Row, column: str, form: numbers.Format = numbers.number, sign: str = "", *, interval: bool = True
) -> str:
    """Return a value that depends on the timing as `figure` does, with a dagger if the timing is not valid."""
    text = figure(row, column, form, sign, interval=interval)
    return f"{text} †" if text and row["timing_valid"] is False else text


def status(row: Row) -> str:
    """Return `ok`, or `oom, 2 of 3 ok`."""
    if row["n_ok"] in (0, row["n_seeds"]):
        return str(row["status"])
    return f"{row['status']}, {row['n_ok']} of {row['n_seeds']} ok"


def gpus_in_words(gpus: float, *, on_cpu: bool = False) -> str:
    """Return `1 GPU`, `0.25 GPUs`; without GPUs, worker processes: `2 processes`."""
    return f"{gpus:g} {gpu_word(on_cpu=on_cpu, one=gpus == 1)}"


def gpu_word(*, on_cpu: bool = False, one: bool = False) -> str:
    """Return `GPU`, `GPUs`, `process` or `processes`."""
    return ("process" if one else "processes") if on_cpu else ("GPU" if one else "GPUs")


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


def markdown(table: pd.DataFrame) -> str:
    """Return a table in Markdown, every value as plain text."""
    text = table.map(numbers.plain).rename(columns=numbers.plain)
    # The same text on every machine.
    tabulate.WIDE_CHARS_MODE = False  # else widths differ where wcwidth happens to be installed
    return str(text.to_markdown(index=False, disable_numparse=True))


def without_empty(columns: pd.DataFrame | Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Return the table without the columns that are empty in every row."""
    table = pd.DataFrame(columns)
    return table.loc[:, (table != "").any()]


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table of text, with explanations."""

    name: str  # one word, used as an anchor
    title: str
    about: Sequence[str]  # paragraphs or lines above the table
    frame: pd.DataFrame  # the table's contents: text in every cell, possibly empty
    remarks: Sequence[str] = ()  # paragraphs below the table

    def markdown(self) -> list[str]:
        """Return the lines in Markdown, without the title; `about` and `remarks` must be Markdown already."""
        below = [line for remark in self.remarks for line in (remark, "")]
        return [*self.about, "", markdown(self.frame), "", *below]

    def document(self, title: str) -> str:
        """Return the table as a Markdown document."""
        return "\n".join([f"# {numbers.plain(title)}", "", *self.markdown()])


@dataclass(frozen=True, kw_only=True)
class Document:
    """A Markdown file beside those of speed-up and accuracy: claims, scaling."""

    text: str
    tables: Sequence[TextTable]
    """Its tables for the page and the terminal; empty if the document only explains why there are none."""
    rows: pd.DataFrame | None = None  # its numbers, for a CSV file beside it and a plot
    line: tuple[str, str] | None = None  # a label and a sentence for the summary
