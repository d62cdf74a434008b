"""Cells as tables, plots and sentences name them: their labels, order, headings and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator.analysis import summary
from orchestrator.statistics.intervals import FEWEST
from orchestrator.text import numbers
from sweeps.probe import PROBE, REPETITION

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
    return numbers.counted(most, "seed", "seeds") if fewest == most else f"{fewest} to {most} seeds"


def method(cells: pd.DataFrame) -> str:
    """Return the method of these cells' intervals, which depends on their numbers of ok seeds."""
    seeds = cells.loc[cells["n_ok"] > 1, "n_ok"]
    if (seeds >= FEWEST).all() and len(seeds):
        return "bootstrapped"
    if (seeds >= FEWEST).any():
        return f"Student's t below {FEWEST} ok seeds, bootstrapped from there on"
    return "Student's t"


def varying(cells: pd.DataFrame) -> list[str]:
    """Return the axes in which cells differ, without batch, GPUs and rule; `device` is first if devices differ.

    An axis that chooses the device stands for it, and the number of GPUs for resources that follow from it.
    """
    columns = ("lr_multiplier", *summary.further_axes(cells))
    differing = [column for column in columns if cells[column].nunique(dropna=False) > 1]
    by_gpus = cells.groupby("gpus")
    differing = [
        column
        for column in differing
        if not (axis(column).startswith("resources.") and by_gpus[column].nunique(dropna=False).max() == 1)
    ]
    choosing = [column for column in differing if axis(column) in _OF_DEVICE]
    is_told = any(cells.groupby(column)["device"].nunique().max() == 1 for column in choosing)
    return ["device", *differing] if cells["device"].nunique() > 1 and not is_told else differing


_OF_DEVICE = ("resources.device", "cluster.gpu_type")
"""Axes that choose the device."""


def in_order(cells: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the cells sorted by these columns: numbers by value, names in order of first appearance."""
    # Names keep the order of the config, which an alphabetical order would lose.
    ranks = {
        column: cells[column] if pd.api.types.is_numeric_dtype(cells[column]) else pd.factorize(cells[column])[0]
        for column in columns
    }
    return cells.loc[pd.DataFrame(ranks, index=cells.index).sort_values(list(columns), kind="stable").index]


def cell_label(row: Row, differing: Sequence[str] = ()) -> str:
    """Return a cell's one short label: `2×128 linear, mlp, compile=on` for 2 GPUs, 128 per GPU and the linear rule.

    Axes without a value are left out, which the labels of other cells name.
    """
    rule = f" {row['lr_rule']}" if "lr_rule" in row else ""
    label = f"{row['gpus']:g}×{numbers.fact(row['device_batch_size'])}{rule}"
    known = [column for column in differing if numbers.config_value(row[column]) != numbers.config_value(None)]
    return ", ".join(filter(None, [label, named(row, known)]))


_IN_LABEL = ("gpus", "device_batch_size", "global_batch_size", "lr_rule", PROBE, REPETITION)
"""Axes whose values are at the start of each label, and the marks of trials that measure another one."""


def differing_axes(points: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the further axes in which these points of a grid differ, without the seed."""
    values: dict[str, set[str]] = {}
    for point in points:
        for axis, value in point.items():
            values.setdefault(axis, set()).add(repr(value))
    return [name for name, own in values.items() if name not in (*_IN_LABEL, "seed") and len(own) > 1]


def trial_label(columns: Row) -> str:
    """Return the short label of a trial's cell, then its further axes and its seed: `2×128 linear, seed=0`."""
    others = {name: value for name, value in columns["axes"].items() if name not in _IN_LABEL}
    return cell_label({**columns, **others}, list(others))


def named(row: Row, columns: Sequence[str]) -> str:
    """Return a cell's values in these columns, with the short name of each axis whose values need one."""
    values = {column: row[column] for column in columns}
    if "gpus" in values:  # next to fractions, a frame holds whole numbers of GPUs as floats
        values["gpus"] = f"{values['gpus']:g}"
    texts = {column: numbers.fact(numbers.config_value(value)) for column, value in values.items()}
    names = short_names(columns)
    return ", ".join(
        texts[column] if axis(column) in _CLEAR else f"{names[column]}={texts[column]}" for column in columns
    )


_CLEAR = ("device", "model", "data", "optimizer", "strategy", "trainable.precision")
"""Axes whose values are words that need no name: `resnet18`, `adamw`, `fsdp`, `bf16`."""


def axis(column: str) -> str:
    """Return the name of a column's axis; axes that share a name with another column have the prefix `axes.`."""
    return column.removeprefix("axes.")


def short_names(columns: Sequence[str]) -> dict[str, str]:
    """Return the last parts of the axes' names by column, where they are unambiguous: `precision`."""
    last = {column: axis(column).rpartition(".")[2] for column in columns}
    taken = [*last.values(), *_IN_LABEL, "seed", "lr"]
    return {column: name if taken.count(name) == 1 else axis(column) for column, name in last.items()}


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
