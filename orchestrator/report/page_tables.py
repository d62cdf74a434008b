"""The tables that a page shows: of cells, of trials, of what failed, and of text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from orchestrator.report.lines import number, word
from orchestrator.report.sortable_table import Cell, Column, SortableTable
from orchestrator.text import figures
from orchestrator.text.figures import one_line
from orchestrator.text.rows import Row, in_order, name, status, varying
from orchestrator.text.table import TextTable
from sweeps.status import Status

_LEADING = re.compile(r"-?\d[\d,]*(\.\d+)?(e[-+]\d+)?(?=$|[ ×%])")
"""The number that a text begins with: `1.87× [1.71, 2.04]`."""
_WORD = re.compile(r"[^\W\d_]+")
_MOST_WORDS = 4
"""Beside a number: `18,278 against 15,974`, but not `2 GPUs with a batch of 32 each`."""

MOST_ROWS = 300
"""Of a table in a page; the files hold all."""


def cell_table(cells: pd.DataFrame) -> SortableTable:
    """A row a cell, in the order of the speed-up table, with everything that was measured."""
    differing = varying(cells)
    ordered = in_order(cells, [*differing, "device_batch_size", "lr_rule", "gpus"])
    return _table("cells", ordered, [*_places(cells), *_FIGURES])


def trial_table(trials: pd.DataFrame, cells: pd.DataFrame) -> SortableTable:
    """A row a trial."""
    return _table("trials", trials, [*_places(cells), *_TRIAL])


def failed_table(cells: pd.DataFrame) -> SortableTable:
    """A row for each cell that is not ok, with the reason."""
    rows = cells[cells["status"] != Status.OK.value]
    differing = varying(cells)
    columns = [_text("cell", lambda row: name(row, differing)), _text("status", status), _text("reason", _note)]
    return _table("failed", rows, columns)


def text_table(found: TextTable) -> SortableTable:
    """A table of text as a page has it: a column whose cells all begin with a number is one of numbers.

    Sentences are none: a cell's name may begin with how many GPUs it has.
    """
    return _table(found.name, found.frame, [_of_text(column, found.frame[column]) for column in found.frame.columns])


def _of_text(column: Any, values: pd.Series[Any]) -> Column:
    def text(row: Row) -> str:
        return str(row[column])

    def leading(row: Row) -> float:
        begins = _LEADING.match(text(row))
        return float(begins[0].replace(",", "")) if begins else math.nan

    numeric = all(_LEADING.match(str(value)) and not _is_sentence(str(value)) for value in values if value != "")
    return Column(title=str(column), text=text, key=leading if numeric else text, numeric=numeric)


def _is_sentence(text: str) -> bool:
    return len(_WORD.findall(text)) > _MOST_WORDS


def _table(title: str, frame: pd.DataFrame, columns: Sequence[Column]) -> SortableTable:
    rows = frame.head(MOST_ROWS).to_dict("records")
    filled = [column for column in columns if any(column.text(row) for row in rows)]
    return SortableTable(
        name=title,
        columns=filled,
        rows=[[Cell(text=one_line(column.text(row), 400), key=column.key(row)) for column in filled] for row in rows],
        more=max(0, len(frame) - MOST_ROWS),
    )


def _places(cells: pd.DataFrame) -> list[Column]:
    """The columns that say which cell it is."""
    return [
        *(_value(column, cells) for column in (*varying(cells), "device_batch_size")),
        _text("LR rule", lambda row: str(row["lr_rule"])),
        *(_value(column, cells) for column in ("gpus", "global_batch_size")),
    ]


def _value(column: str, cells: pd.DataFrame) -> Column:
    """An axis: sorted as numbers where it holds numbers."""

    def key(row: Row) -> float | str:
        value = row[column]
        return value if isinstance(value, (int, float)) else str(value)

    numeric = pd.api.types.is_numeric_dtype(cells[column])
    return Column(title=word(column, cells), text=lambda row: _axis_value(row[column]), key=key, numeric=numeric)


def _axis_value(value: Any) -> str:
    value = figures.asked(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _text(title: str, text: Callable[[Row], str]) -> Column:
    return Column(title=title, text=text, key=text, numeric=False)


def _measured(title: str, column: str, form: figures.Form = figures.number, sign: str = "") -> Column:
    """A figure, with its interval where the cell has one."""

    def text(row: Row) -> str:
        lo, hi = number(row.get(f"{column}_lo")), number(row.get(f"{column}_hi"))
        return figures.with_interval(number(row[column]), lo, hi, form, sign)

    return Column(title=title, text=text, key=lambda row: number(row[column]))


def _timed(title: str, column: str, form: figures.Form = figures.number, sign: str = "") -> Column:
    """A figure that something which disturbs a timing changes: a dagger says that it is not valid."""
    plain = _measured(title, column, form, sign)
    return replace(plain, text=lambda row: _with_dagger(plain.text(row), row))


def _with_dagger(text: str, row: Row) -> str:
    return f"{text} †" if text and row["timing_valid"] is False else text


def _is_baseline(row: Row) -> bool:
    return bool(row["cell_id"] == row["baseline_cell_id"])


def _three(value: float) -> str:
    return f"{value:.3f}"


def _speedup(row: Row) -> str:
    return "1× (baseline)" if _is_baseline(row) else _SPEEDUP.text(row)


def _efficiency(row: Row) -> str:
    return "" if _is_baseline(row) else _EFFICIENCY.text(row)


def _seeds(row: Row) -> str:
    return f"{row['n_ok']}/{row['n_seeds']}"


def _note(row: Row) -> str:
    return str(row["note"])


def _timing(row: Row) -> str:
    return "" if pd.isna(row["timing_valid"]) else ("valid" if row["timing_valid"] else "not valid")


_SPEEDUP = _timed("speed-up", "speedup", figures.times, "×")
_EFFICIENCY = _timed("efficiency", "efficiency", figures.percent, "%")

_FIGURES: Sequence[Column] = (
    _text("status", lambda row: str(row["status"])),
    Column(title="seeds ok", text=_seeds, key=lambda row: number(row["n_ok"])),
    _timed("samples/s", "samples_per_s"),
    replace(_SPEEDUP, text=_speedup),
    replace(_EFFICIENCY, text=_efficiency),
    _timed("epoch [s]", "epoch_s"),
    _measured("first epoch [s]", "first_epoch_s"),
    _measured("training [s]", "train_s"),
    _measured("accuracy", "accuracy", _three),
    _measured("val. accuracy", "val_accuracy", _three),
    _measured("to target [s]", "time_to_target_s"),
    _measured("speed-up to target", "speedup_to_target", figures.times, "×"),
    _measured("energy [J]", "energy_j"),
    _measured("energy [J/sample]", "energy_j_per_sample"),
    _measured("power [W]", "power_w"),
    _measured("GPU use", "gpu_util", figures.percent, "%"),
    _measured("memory [GB]", "peak_memory_gb"),
    _measured("cost", "cost"),
    _text("timing", _timing),
    _text("note", _note),
)

_TRIAL: Sequence[Column] = (
    _measured("seed", "seed", lambda value: f"{value:.0f}"),
    _text("status", lambda row: str(row["status"])),
    _timed("samples/s", "samples_per_s"),
    _timed("epoch [s]", "epoch_s"),
    _measured("accuracy", "accuracy", _three),
    _measured("val. accuracy", "val_accuracy", _three),
    _measured("to target [s]", "time_to_target_s"),
    _measured("wall [s]", "wall_s"),
    _text("timing", _timing),
    _text("note", _note),
    _text("trial", lambda row: str(row["trial_id"])),
)
