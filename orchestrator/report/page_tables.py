"""The tables of cells and trials in the page, and the menus that filter them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator.analysis.summary import further_metrics
from orchestrator.config.request import Metric
from orchestrator.decision.recommendation import Recommendation
from orchestrator.decision.thresholds import SHOWN
from orchestrator.report.cell_rows import role_of
from orchestrator.report.plot import MOST_OPTIONS, filter_value, label_of, word
from orchestrator.tables.candidates import IS_BEST
from orchestrator.tables.recommendation_sentences import probability
from orchestrator.tables.speedup import efficiency_text, scaling_text
from orchestrator.text import numbers
from orchestrator.text.cell_labels import (
    ALWAYS,
    WORDS,
    Row,
    cell_label,
    figure,
    in_order,
    short_names,
    status,
    throughput_of,
    timed_figure,
    varying,
)
from orchestrator.text.numbers import one_line, suited

MOST_ROWS = 2000
"""The most rows of a table in the page; the files hold all."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: its text in a row, and whether the text begins with a number, by which it is sorted."""

    text: Callable[[Row], str]
    is_number: bool = True


Columns = Mapping[str, Column]
"""The columns of a table by their titles."""


def cell_table(cells: pd.DataFrame, recommendation: Recommendation) -> dict[str, Any]:
    """Return a row for each cell `with_times`, in the order of the charts' rows, with everything measured."""
    ordered = in_order(cells, [*varying(cells), "device_batch_size", "lr_rule", "gpus"])
    unknown = math.nan, math.nan
    chances = [recommendation.probabilities.get(str(cell_id), unknown) for cell_id in ordered["cell_id"]]
    ordered = ordered.assign(
        p_within=[within for within, _ in chances],
        p_best=[best for _, best in chances],
        # The fastest cells, which come first, are often those that no longer learn.
        role=[
            role_of(row, recommendation) or ("misses the margin" if within < SHOWN else "")
            for row, (within, _) in zip(ordered.to_dict("records"), chances, strict=True)
        ],
    )
    metric, report = recommendation.terms.metric, recommendation.terms.report
    unit = suited("GPU-hours" if report.price_per_gpu_hour is None else report.unit_of_cost, *ordered["cost"])
    ordered = ordered.assign(cost=ordered["cost"] / unit.size)
    words = {_METRIC: f"{metric.word} holds", _COST: f"cost [{unit.name}]"}
    columns = {words.get(title, title): column for title, column in _OF_CELLS.items()}
    table = _table(ordered, cells, columns, metric, metrics_before="val. accuracy")
    # Shown by time at first; the rows keep the order of the charts' rows.
    titles = [title for title, _ in table["columns"]]
    return table | {"by": titles.index("time [s]") if "time [s]" in titles else None}


def trial_table(trials: pd.DataFrame, cells: pd.DataFrame, metric: Metric) -> dict[str, Any]:
    """Return a row for each trial."""
    return _table(trials, cells, _OF_TRIALS, metric, metrics_before="test accuracy")


def _table(
    frame: pd.DataFrame, cells: pd.DataFrame, columns: Columns, metric: Metric, metrics_before: str
) -> dict[str, Any]:
    """Return the table as JSON for the page, without the columns that are empty in every row."""
    differing = varying(cells)
    rows = frame.head(MOST_ROWS).to_dict("records")
    name = Column(text=lambda row: label_of(cell_label(row, differing)), is_number=False)
    table = {"cell": name, **_with_measured(columns, frame, cells, metric, metrics_before)}
    # A note may be as long as a traceback.
    texts = {title: [one_line(column.text(row), 400) for row in rows] for title, column in table.items()}
    # What all cells share is in the page's heading, and the room is another column's.
    known = [
        title
        for title, values in texts.items()
        if title == "cell" or (any(values) and not (title in _IN_HEADING and len({*values}) == 1 < len(rows)))
    ]
    return {
        "columns": [(title, table[title].is_number) for title in known],
        "rows": [list(row) for row in zip(*(texts[title] for title in known), strict=True)],
        "more": max(0, len(frame) - MOST_ROWS),
    }


def _with_measured(
    columns: Columns, frame: pd.DataFrame, cells: pd.DataFrame, metric: Metric, metrics_before: str
) -> Columns:
    """Insert the throughput before the epochs' time, and metrics that are no accuracy before the named column."""
    unit, throughput = throughput_of(frame)
    metrics: dict[str, Column] = {}
    if metric.name not in ("accuracy", "val_accuracy"):
        metrics[metric.heading] = _measured(metric.name, _three)
    for name in further_metrics(cells):
        if name != metric.name:
            metrics[Metric.named(name).label] = _measured(name)
    # Quantities that matter stand beside those that they are compared with.
    before = {metrics_before: metrics, "epoch [s]": {unit: _timed(throughput)}}
    whole: dict[str, Column] = {}
    for title, column in columns.items():
        whole |= before.get(title, {}) | {title: column}
    return whole


def _measured(column: str, form: numbers.Format = numbers.number, sign: str = "") -> Column:
    return Column(text=lambda row: figure(row, column, form, sign))


def _timed(column: str, form: numbers.Format = numbers.number, sign: str = "") -> Column:
    return Column(text=lambda row: timed_figure(row, column, form, sign))


def _three(value: float) -> str:
    return f"{value:.3f}"


def _chance(column: str) -> Column:
    return Column(text=lambda row: "" if math.isnan(row[column]) else probability(row[column], short=True))


def _words(text: Callable[[Row], str]) -> Column:
    return Column(text=text, is_number=False)


_METRIC, _COST = "metric holds", "cost"
"""Stand for titles with the word of the metric of choice, and with the unit."""

_IN_HEADING = ("status", "seeds ok", "valid timings")

_OF_CELLS: Columns = {
    "role": _words(lambda row: str(row["role"])),
    "time [s]": _timed("time_s"),
    "val. accuracy": _measured("val_accuracy", _three),
    _METRIC: _chance("p_within"),
    IS_BEST: _chance("p_best"),
    "scaling": Column(text=scaling_text),
    # Without its interval, which is as wide as that of the scaling.
    "efficiency": Column(text=lambda row: efficiency_text(row, interval=False)),
    _COST: _timed("cost"),
    "memory [GB]": _measured("peak_memory_gb"),
    "status": _words(status),
    "seeds ok": Column(text=lambda row: f"{row['n_ok']}/{row['n_seeds']}"),
    "valid timings": Column(
        text=lambda row: f"{row['n_timed'] if row['timing_valid'] is True else 0} of {row['n_ok']}"
    ),
    "with start-up [s]": _timed("total_s"),
    "test accuracy": _measured("accuracy", _three),
    "epoch [s]": _timed("epoch_s"),
    "first epoch [s]": _measured("first_epoch_s"),
    "to target [s]": _measured("time_to_target_s"),
    "scaling to target": _measured("speedup_to_target", numbers.times, "×"),
    "energy [J]": _measured("energy_j"),
    "energy [J/sample]": _measured("energy_j_per_sample"),
    "power [W]": _measured("power_w"),
    "GPU use": _measured("gpu_util", numbers.percent, "%"),
    "note": _words(lambda row: str(row["note"])),
}

_OF_TRIALS: Columns = {
    "seed": _measured("seed", lambda value: f"{value:.0f}"),
    "status": _words(lambda row: str(row["status"])),
    "epoch [s]": _timed("epoch_s"),
    "test accuracy": _measured("accuracy", _three),
    "val. accuracy": _measured("val_accuracy", _three),
    "to target [s]": _measured("time_to_target_s"),
    "wall [s]": _measured("wall_s"),
    "timing": _words(lambda row: {True: "valid", False: "not valid"}.get(row["timing_valid"], "")),
    "shared with": _words(
        lambda row: next(
            (str(row[name]) for name in ("same_as", "timed_with") if isinstance(row[name], str) and row[name]), ""
        )
    ),
    "note": _words(lambda row: str(row["note"])),
    "trial": _words(lambda row: str(row["trial_id"])),
}


def filters(cells: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Return a menu for each axis with several values, but not too many: `title`, `field` of the rows, `values`."""
    menus: list[Mapping[str, Any]] = []
    differing = varying(cells)
    names = {column: name for column, name in short_names(differing).items() if column not in WORDS}
    for column in (*ALWAYS, *differing):
        values = [filter_value(value) for value in in_order(cells, [column])[column].unique()]
        # A menu with one value filters nothing.
        if 1 < len(values) <= MOST_OPTIONS:
            menus.append(
                {
                    "title": one_line(names.get(column) or word(column, cells)),
                    "field": f"axis:{column}",
                    "values": values,
                }
            )
    return menus
