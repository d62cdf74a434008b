"""The tiles at the top of the page, its tables of cells and trials, and the menus that filter them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator.analysis.cells import further_metrics
from orchestrator.config.request import Metric
from orchestrator.decision.choice import TIE
from orchestrator.decision.recommendation import Recommendation, Setting
from orchestrator.report.plot import MOST_OPTIONS, filter_value, label_of, word
from orchestrator.tables.choice_cells import COLUMNS, speed_of, takes_longer
from orchestrator.tables.recommendation import safe_choice
from orchestrator.tables.sentences import probability
from orchestrator.tables.speedup import efficiency_text, speedup_text
from orchestrator.text import numbers
from orchestrator.text.numbers import one_line, suited
from orchestrator.text.rows import (
    ALWAYS,
    Row,
    cell_label,
    figure,
    gpus_in_words,
    in_order,
    status,
    throughput_of,
    timed_figure,
    varying,
)


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A large value at the top of the page, with its title and lines below it."""

    title: str
    value: str
    lines: Sequence[str] = ()


def tiles(recommendation: Recommendation) -> list[Tile]:
    """Return what to use and what it yields beside the baseline; nothing without a recommendation.

    Without GPUs there are no costs, which would be the time of the processes.
    """
    chosen = recommendation.chosen
    if chosen is None:
        return []
    per_gpu, in_all, rate = (chosen.values[key] for key in ("device_batch_size", "global_batch_size", "lr"))
    batch = f"batch {per_gpu:,} each, {in_all:,} in all" if per_gpu != in_all else f"batch {in_all:,}"
    setting = [
        f"{gpus_in_words(chosen.values['gpus'], on_cpu=recommendation.on_cpu)}, {batch}",
        f"rule {chosen.values.get('lr_rule')}" + (f", LR {rate:.4g}" if isinstance(rate, float) else ""),
    ]
    baseline = None if recommendation.is_baseline else recommendation.baseline
    safe = recommendation.setting(recommendation.safe_cell_id)
    return [
        Tile(title="use", value=chosen.name, lines=setting),
        *_amounts(recommendation, chosen, baseline),
        *_metric(recommendation, chosen, baseline),
        *([Tile(title="safe choice", value=safe.name, lines=[safe_choice(recommendation)])] if safe else []),
    ]


def _amounts(recommendation: Recommendation, chosen: Setting, baseline: Setting | None) -> Iterator[Tile]:
    """Yield a tile for the time, the energy and the cost, as far as they are known."""
    purpose = recommendation.measure.partition(" ")[2]
    for quantity in (recommendation.deciding_time, "energy", "cost"):
        value, unit_name = chosen.value(quantity), chosen.figures[quantity].unit
        if math.isnan(value) or (quantity == "cost" and recommendation.on_cpu):
            continue
        is_time = quantity == recommendation.deciding_time
        of_baseline = baseline.value(quantity) if baseline else math.nan
        unit = suited(unit_name, value, of_baseline)
        lines = []
        if not math.isnan(of_baseline):
            speed = speed_of(chosen, recommendation)
            faster = "" if math.isnan(speed) else f": {numbers.times(speed)}× as fast"
            share = f": {numbers.percent(value / of_baseline)}% of it"
            lines.append(f"baseline {unit.text(of_baseline)}{faster if is_time else share}")
        if is_time:
            lines += _other_time(recommendation, chosen, baseline)
            lines.append(f"timed from {chosen.n_timed} of {chosen.n_ok} seeds")
        # Total and training time have one title, because only the one that decides is shown.
        title = "time" if is_time else COLUMNS[quantity]
        yield Tile(title=f"{title} {purpose}", value=unit.text(value), lines=lines)


def _metric(recommendation: Recommendation, chosen: Setting, baseline: Setting | None) -> Iterator[Tile]:
    """Yield the tile of the metric of choice, if it is known."""
    metric = recommendation.terms.metric
    value, difference = chosen.value(metric.name), chosen.value(f"{metric.name}_difference")
    if math.isnan(value):
        return
    lines = []
    if baseline and not math.isnan(difference):
        lines.append(f"{difference:+z.3f} against the baseline's {baseline.value(metric.name):.3f}")
        lines.append(f"{recommendation.terms.report.margin:g} {metric.worse} is allowed")
    lines.append(f"mean of {numbers.counted(chosen.n_ok, 'seed', 'seeds')}")
    yield Tile(title=metric.label, value=f"{value:.3f}", lines=lines)


def _other_time(recommendation: Recommendation, chosen: Setting, baseline: Setting | None) -> list[str]:
    """Return a line with the time that does not decide, if the two differ materially."""
    if not takes_longer(chosen):
        return []
    if recommendation.deciding_time == "total_time":
        return [f"training alone: {_seconds(chosen.value('time'))}"]
    of_baseline = f" (baseline {_seconds(baseline.value('total_time'))})" if baseline else ""
    return [f"{_seconds(chosen.value('total_time'))}{of_baseline} with start-up, compilation and evaluation"]


def _seconds(value: float) -> str:
    return suited("s", value).text(value)


def chances(recommendation: Recommendation) -> list[str]:
    """Return the lines below the verdict: how likely the choice is, and the rival that is as likely."""
    # A chosen baseline is within the margin by definition.
    best, within = recommendation.p_best, recommendation.p_within_margin
    lines = []
    if not math.isnan(best):
        lines.append(f"{probability(best)} likely the best, or within {TIE:.0%} of it")
    if not math.isnan(within) and not recommendation.is_baseline:
        lines.append(f"{probability(within)} likely within the margin")
    tied = [rival for rival in recommendation.rivals if rival.tied]
    return [*lines, *(f"rival {rival.name}: {probability(rival.p_best)}" for rival in tied[:1])]


MOST_ROWS = 2000
"""The most rows of a table in the page; the files hold all."""

_LEADING = re.compile(r"-?\d[\d,]*(\.\d+)?(e[-+]\d+)?(?=$|[ %/]|×(?!\d))")
"""The number at the start of a text: `1.87× [1.71, 2.04]`; the label of a cell, `2×128 linear`, has none."""
_WORD = re.compile(r"[^\W\d_]+")
_MOST_WORDS = 4
"""A text with a number and more words is a sentence: `2 GPUs with a batch of 32 each`, not `18,278 against 15,974`."""


def numeric(frame: pd.DataFrame) -> list[bool]:
    """Return for each column of texts whether all of them begin with a number and none is a sentence."""
    return [
        all(_LEADING.match(value) and len(_WORD.findall(value)) <= _MOST_WORDS for value in map(str, values) if value)
        for _, values in frame.items()
    ]


Columns = Mapping[str, Callable[[Row], str]]
"""The columns of a table: titles, and functions of a row that return its text."""


def cell_table(cells: pd.DataFrame, metric: Metric) -> dict[str, Any]:
    """Return a row for each cell `with_times`, in the order of the charts' rows, with everything measured."""
    ordered = in_order(cells, [*varying(cells), "device_batch_size", "lr_rule", "gpus"])
    return _table(ordered, cells, _OF_CELLS, metric)


def trial_table(trials: pd.DataFrame, cells: pd.DataFrame, metric: Metric) -> dict[str, Any]:
    """Return a row for each trial."""
    return _table(trials, cells, _OF_TRIALS, metric)


def _table(frame: pd.DataFrame, cells: pd.DataFrame, columns: Columns, metric: Metric) -> dict[str, Any]:
    """Return the table as JSON for the page, without the columns that are empty in every row."""
    differing = varying(cells)
    texts: dict[str, list[str]] = {}
    rows = frame.head(MOST_ROWS).to_dict("records")
    # A note may be as long as a traceback.
    for title, text in _with_measured(columns, frame, cells, metric).items():
        texts[title] = [one_line(text(row), 400) for row in rows]
    known = {title: values for title, values in texts.items() if any(values)}
    table = pd.DataFrame({"cell": [label_of(cell_label(row, differing)) for row in rows], **known})
    return {
        "columns": [*zip(table.columns, numeric(table), strict=True)],
        "rows": table.to_numpy().tolist(),
        "more": max(0, len(frame) - MOST_ROWS),
    }


def _with_measured(columns: Columns, frame: pd.DataFrame, cells: pd.DataFrame, metric: Metric) -> Columns:
    """Insert the throughput before the epochs' time, and metrics that are no accuracy before the accuracies."""
    unit, throughput = throughput_of(frame)
    metrics: dict[str, Callable[[Row], str]] = {}
    if metric.name not in ("accuracy", "val_accuracy"):
        metrics[metric.heading] = _measured(metric.name, _three)
    for name in further_metrics(cells):
        if name != metric.name:
            metrics[Metric.named(name).label] = _measured(name)
    # Quantities that matter stand beside those that they are compared with.
    first_accuracy = next(title for title in columns if title.endswith("accuracy"))
    before = {first_accuracy: metrics, "epoch [s]": {unit: _timed(throughput)}}
    whole: dict[str, Callable[[Row], str]] = {}
    for title, text in columns.items():
        whole |= before.get(title, {}) | {title: text}
    return whole


def _measured(column: str, form: numbers.Form = numbers.number, sign: str = "") -> Callable[[Row], str]:
    return lambda row: figure(row, column, form, sign)


def _timed(column: str, form: numbers.Form = numbers.number, sign: str = "") -> Callable[[Row], str]:
    return lambda row: timed_figure(row, column, form, sign)


def _three(value: float) -> str:
    return f"{value:.3f}"


def _seeds_timed(row: Row) -> str:
    return f"{row['n_timed'] if row['timing_valid'] is True else 0}/{row['n_ok']}"


def _validity(row: Row) -> str:
    return "" if pd.isna(row["timing_valid"]) else ("valid" if row["timing_valid"] else "not valid")


_OF_CELLS: Columns = {
    "status": status,
    "seeds ok": lambda row: f"{row['n_ok']}/{row['n_seeds']}",
    "seeds timed": _seeds_timed,
    "time [s]": _timed("time_s"),
    "total [s]": _timed("total_s"),
    "val. accuracy": _measured("val_accuracy", _three),
    "test accuracy": _measured("accuracy", _three),
    "speed-up": speedup_text,
    "efficiency": efficiency_text,
    "epoch [s]": _timed("epoch_s"),
    "first epoch [s]": _measured("first_epoch_s"),
    "to target [s]": _measured("time_to_target_s"),
    "speed-up to target": _measured("speedup_to_target", numbers.times, "×"),
    "energy [J]": _measured("energy_j"),
    "energy [J/sample]": _measured("energy_j_per_sample"),
    "power [W]": _measured("power_w"),
    "GPU use": _measured("gpu_util", numbers.percent, "%"),
    "memory [GB]": _measured("peak_memory_gb"),
    "trial cost": _measured("cost"),
    "note": lambda row: str(row["note"]),
}

_OF_TRIALS: Columns = {
    "seed": _measured("seed", lambda value: f"{value:.0f}"),
    "status": lambda row: str(row["status"]),
    "epoch [s]": _timed("epoch_s"),
    "test accuracy": _measured("accuracy", _three),
    "val. accuracy": _measured("val_accuracy", _three),
    "to target [s]": _measured("time_to_target_s"),
    "wall [s]": _measured("wall_s"),
    "timing": _validity,
    "note": lambda row: str(row["note"]),
    "trial": lambda row: str(row["trial_id"]),
}


def filters(cells: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Return a menu for each axis with several values, but not too many: `title`, `field` of the rows, `values`."""
    menus: list[Mapping[str, Any]] = []
    for column in (*ALWAYS, *varying(cells)):
        values = [filter_value(value) for value in in_order(cells, [column])[column].unique()]
        # A menu with one value filters nothing.
        if 1 < len(values) <= MOST_OPTIONS:
            menus.append({"title": one_line(word(column, cells)), "field": f"axis:{column}", "values": values})
    return menus
