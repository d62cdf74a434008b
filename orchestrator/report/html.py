"""The HTML page: its tiles, its tables, and its rendering. This is the only module of the report that uses Jinja.

All text is escaped. The page loads nothing, and its content security policy allows only its own style and script.
Charts and large tables are drawn by the script from data in JSON, so that filters apply to all of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.analysis.cells import further_metrics
from orchestrator.config.request import Metric
from orchestrator.decision.choice import TIE
from orchestrator.decision.recommendation import Recommendation, Setting
from orchestrator.report.plot import MOST_OPTIONS, Plot, filter_value, label_of, script, theme, word
from orchestrator.store.files import finite
from orchestrator.store.results import Finding
from orchestrator.tables.recommendation import RecommendationText, probability, safe_choice, takes_longer
from orchestrator.text import numbers
from orchestrator.text.numbers import one_line, suited
from orchestrator.text.rows import (
    ALWAYS,
    Row,
    TextTable,
    cell_label,
    gpus_in_words,
    in_order,
    status,
    throughput_of,
    varying,
)
from sweeps.printable import HARMFUL, printable


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A large figure at the top of the page, with its title and lines below it."""

    title: str
    value: str
    lines: Sequence[str] = ()


def tiles(found: Recommendation) -> list[Tile]:
    """Return what to use and what it yields beside the baseline; nothing without a recommendation.

    Without GPUs there are no costs, which would be the time of the processes.
    """
    by_id = {each.cell_id: each for each in found.shortlist}
    chosen, baseline = (by_id.get(cell_id or "") for cell_id in (found.cell_id, found.baseline_cell_id))
    if chosen is None:
        return []
    gpus, each, whole, rate = (chosen.values[key] for key in ("gpus", "device_batch_size", "global_batch_size", "lr"))
    batch = f"batch {each:,} each, {whole:,} in all" if each != whole else f"batch {whole:,}"
    setting = [
        f"{gpus_in_words(gpus, on_cpu=found.on_cpu)}, {batch}",
        f"rule {chosen.values.get('lr_rule')}" + (f", LR {rate:.4g}" if isinstance(rate, float) else ""),
    ]
    use = Tile(title="use", value=chosen.name, lines=setting)
    outcome = _outcome_tiles(found, chosen, None if found.is_baseline else baseline)
    safe = by_id.get(found.safe_cell_id or "")
    return [use, *outcome, *([Tile(title="safe choice", value=safe.name, lines=[safe_choice(found)])] if safe else [])]


def _outcome_tiles(found: Recommendation, chosen: Setting, baseline: Setting | None) -> Iterator[Tile]:
    purpose = found.measure.partition(" ")[2]
    for quantity in (found.deciding_time, "energy", "cost"):
        mine = chosen.figures[quantity]
        if math.isnan(mine.value) or (quantity == "cost" and found.on_cpu):
            continue
        other = baseline.figures[quantity].value if baseline else math.nan
        unit = suited(mine.unit, mine.value, other)
        lines = []
        if not math.isnan(other):
            share = f"{numbers.percent(mine.value / other)}% of it"
            faster = f"{numbers.times(other / mine.value)}× as fast"
            lines.append(f"baseline {unit.text(other)}: {faster if quantity == found.deciding_time else share}")
        if quantity == found.deciding_time:
            lines += _other_time(found, chosen, baseline)
            lines.append(f"timed from {chosen.n_timed} of {chosen.n_ok} seeds")
        yield Tile(title=f"{_TITLES.get(quantity, quantity)} {purpose}", value=unit.text(mine.value), lines=lines)
    name = found.metric.name
    if name not in chosen.figures:
        return
    reached = chosen.figures[name].value
    if not math.isnan(reached):
        difference, lines = chosen.figures[f"{name}_difference"].value, []
        if baseline and not math.isnan(difference):
            lines = [f"{difference:+z.3f} against the baseline's {baseline.figures[name].value:.3f}"]
            lines += [f"{found.margin:g} {found.metric.worse} is allowed"]
        seeds = numbers.counted(chosen.n_ok, "seed", "seeds")
        yield Tile(title=found.metric.label, value=f"{reached:.3f}", lines=[*lines, f"mean of {seeds}"])


_TITLES = {"total_time": "time", "cost": "training cost"}


def _other_time(found: Recommendation, chosen: Setting, baseline: Setting | None) -> list[str]:
    """Return a line with the time that does not decide, if the two differ materially."""
    if not takes_longer(chosen):
        return []
    if found.deciding_time == "total_time":
        return [f"training alone: {_seconds(chosen.figures['time'].value)}"]
    total = _seconds(chosen.figures["total_time"].value)
    of_baseline = f" (baseline {_seconds(baseline.figures['total_time'].value)})" if baseline else ""
    return [f"{total}{of_baseline} with start-up, compilation and evaluation"]


def _seconds(value: float) -> str:
    return suited("s", value).text(value)


def chances(found: Recommendation) -> list[str]:
    """Return the lines below the verdict, some empty: how likely the choice is, and the rival that is as likely."""
    tied = [rival for rival in found.rivals if rival.tied]
    within = "" if found.is_baseline else probability(found.p_within_margin)
    best = probability(found.p_best) if found.p_best == found.p_best else ""
    return [
        f"{best} likely the best, or within {TIE:.0%} of it" if best else "",
        f"{within} likely within the margin" if within and found.p_within_margin == found.p_within_margin else "",
        f"rival {tied[0].name}: {probability(tied[0].p_best)}" if tied else "",
    ]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: its title, and a function of a row for the text."""

    title: str
    text: Callable[[Row], str]
    numeric: bool = True
    """True if the column sorts by the numbers at the start of its texts."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the page, without the columns that are empty in every row. The first column names the row's cell."""

    columns: Sequence[tuple[str, bool]]
    """Title, and whether the column is numeric."""
    rows: Sequence[Sequence[str]]
    more: int = 0
    """Rows that are only in the files."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A menu with the values of an axis: the page shows the cells with the chosen one."""

    title: str
    field: str
    """The field of the rows of cells."""
    values: Sequence[str]


_HERE = Path(__file__).parent

MOST_ROWS = 2000
"""The most rows of a table in the page; the files hold all."""

MOST_CHOICES = 8
"""The most rows of the Pareto table and of the lists beside it."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """The contents of the page, in its order."""

    sweep: str
    facts: Sequence[tuple[str, str]]
    found: Recommendation | None
    recommendation: RecommendationText | None
    tiles: Sequence[Tile]
    chances: Sequence[str]
    """Lines below the verdict."""
    largest_loss: str
    claims: Sequence[TextTable]
    findings: Sequence[Finding]
    cell_rows: Sequence[Mapping[str, Any]]
    filters: Sequence[Filter]
    plots: Sequence[Plot]
    further: Sequence[TextTable]
    """Sections after the tables."""
    tables: Mapping[str, Table]
    """`cells` and `trials`."""
    failed: Sequence[str]
    """A line for each group of cells that are not ok."""
    none_ok: bool
    """True if no cell has an ok trial: then the cells that are not ok come first."""
    command: str
    provenance: Sequence[tuple[str, str]]


FIRST_PLOTS = ("trade_off", "speedup")
"""The charts of the first screen, as far as they are drawn."""


def rendered(page: Page) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    css = (_HERE / "page.css").read_text()
    js = "\n".join((script(), (_HERE / "page.js").read_text()))
    drawn = [plot for plot in page.plots if plot.spec]
    return environment.get_template("page.html.j2").render(
        page=page,
        first=[plot for plot in drawn if plot.name in FIRST_PLOTS],
        plots=[plot for plot in drawn if plot.name not in FIRST_PLOTS],
        panels=[plot for plot in drawn if plot.name == "speedup" and len({row["panel"] for row in page.cell_rows}) > 1],
        absent=[plot for plot in page.plots if not plot.spec],
        most=MOST_CHOICES,
        data=Markup(_data(page, drawn)),
        css=Markup(css),
        js=Markup(js),
        policy=f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(js)}'; base-uri 'none';"
        " form-action 'none'",
        numeric=numeric,
    )


def _digest(text: str) -> str:
    """Return the hash by which the content security policy allows this style sheet or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode(errors='replace')).digest()).decode()}"


def _data(page: Page, drawn: Sequence[Plot]) -> str:
    """Return the data of the script as JSON that cannot end its element: it has no `<`."""
    rows = {"cells": page.cell_rows} | {plot.name: plot.rows for plot in drawn if plot.rows is not None}
    content = {
        "data": {name: _by_column(each) for name, each in rows.items()},
        "plots": {
            plot.name: {"spec": plot.spec, "data": "cells" if plot.rows is None else plot.name} for plot in drawn
        },
        "tables": {name: asdict(table) for name, table in page.tables.items()},
        "themes": {name: theme(name) for name in ("light", "dark")},
    }
    text = json.dumps(finite(content), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", text).replace("<", "\\u003c")


def _by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rows as lists of values by field, which are shorter than a list of objects.

    Numbers have five digits. A field of texts has its distinct texts once, and for each row the place of its text.
    """
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [_short(row.get(name)) for row in rows]
        if all(isinstance(value, str) for value in values):
            places = {text: place for place, text in enumerate(dict.fromkeys(values))}
            found[name] = {"texts": list(places), "places": [places[text] for text in values]}
        else:
            found[name] = values
    return found


def _short(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    return None if pd.isna(value) else bool(value) if value is pd.NA else float(f"{float(value):.5g}")


_LEADING = re.compile(r"-?\d[\d,]*(\.\d+)?(e[-+]\d+)?(?=$|[ %]|×(?!\d))")
"""The number at the start of a text: `1.87× [1.71, 2.04]`; the label of a cell, `2×128 linear`, has none."""
_WORD = re.compile(r"[^\W\d_]+")
_MOST_WORDS = 4
"""A text with a number and more words is a sentence: `2 GPUs with a batch of 32 each`, not `18,278 against 15,974`."""


def numeric(table: TextTable) -> list[bool]:
    """Return for each column whether all its texts begin with a number and none is a sentence."""
    return [
        all(_LEADING.match(value) and len(_WORD.findall(value)) <= _MOST_WORDS for value in map(str, values) if value)
        for _, values in table.frame.items()
    ]


def cell_table(cells: pd.DataFrame, metric: Metric) -> Table:
    """Return a row for each cell `with_times`, in the order of the speed-up table, with everything measured."""
    differing = varying(cells)
    ordered = in_order(cells, [*differing, "device_batch_size", "lr_rule", "gpus"])
    columns = _columns(_FIGURES, cells, cells, metric)
    return _table(ordered, [_text("cell", lambda row: cell_label(row, differing)), *columns])


def trial_table(trials: pd.DataFrame, cells: pd.DataFrame, metric: Metric) -> Table:
    """Return a row for each trial."""
    differing = varying(cells)
    columns = _columns(_TRIAL, trials, cells, metric)
    return _table(trials, [_text("cell", lambda row: cell_label(row, differing)), *columns])


def _columns(columns: Sequence[Column], frame: pd.DataFrame, cells: pd.DataFrame, metric: Metric) -> list[Column]:
    """Return the columns, with the throughput, the metric of choice if it is no accuracy, and further metrics."""
    titles = [column.title for column in columns]
    accuracies = next(place for place, title in enumerate(titles) if title.endswith("accuracy"))
    chosen = [] if metric.name in ("accuracy", "val_accuracy") else [_measured(metric.label, metric.name, _three)]
    others = [name for name in further_metrics(cells) if name != metric.name]
    chosen += [_measured(Metric(name=name).label, name) for name in others]
    further = {accuracies: chosen, titles.index("epoch [s]"): [_timed(*throughput_of(frame))]}
    return [each for place, column in enumerate(columns) for each in (*further.get(place, ()), column)]


def filters(cells: pd.DataFrame) -> list[Filter]:
    """Return a menu for each axis with several values, but not too many for a menu."""
    columns = [*ALWAYS, *varying(cells)]
    found = []
    for column in columns:
        values = [filter_value(value) for value in in_order(cells, [column])[column].unique()]
        if 1 < len(values) <= MOST_OPTIONS:
            found.append(Filter(title=one_line(word(column, cells)), field=f"axis:{column}", values=values))
    return found


def _table(frame: pd.DataFrame, columns: Sequence[Column]) -> Table:
    rows = frame.head(MOST_ROWS).to_dict("records")
    texts = [[column.text(row) for row in rows] for column in columns]
    filled = [place for place, each in enumerate(texts) if any(each)]
    cut = [[label_of(text) if place == 0 else one_line(text, 400) for text in texts[place]] for place in filled]
    return Table(
        columns=[(columns[place].title, columns[place].numeric) for place in filled],
        rows=[list(row) for row in zip(*cut, strict=True)],
        more=max(0, len(frame) - MOST_ROWS),
    )


def _text(title: str, text: Callable[[Row], str]) -> Column:
    return Column(title=title, text=text, numeric=False)


def _number(value: Any) -> float:
    return float(value) if value is not None and not pd.isna(value) else math.nan


def _measured(title: str, column: str, form: numbers.Form = numbers.number, sign: str = "") -> Column:
    """Return the column of a figure, with its interval if the cell has one."""

    def text(row: Row) -> str:
        point, lo, hi = (_number(row.get(f"{column}{end}")) for end in ("", "_lo", "_hi"))
        return numbers.with_interval(point, lo, hi, form, sign)

    return Column(title=title, text=text)


def _timed(title: str, column: str, form: numbers.Form = numbers.number, sign: str = "") -> Column:
    """Return the column of a figure that depends on the timing, with a dagger if the timing is not valid."""
    plain = _measured(title, column, form, sign)

    def text(row: Row) -> str:
        found = plain.text(row)
        return f"{found} †" if found and row["timing_valid"] is False else found

    return replace(plain, text=text)


def _is_baseline(row: Row) -> bool:
    return bool(row["cell_id"] == row["baseline_cell_id"])


def _three(value: float) -> str:
    return f"{value:.3f}"


def _timing(row: Row) -> str:
    return "" if pd.isna(row["timing_valid"]) else ("valid" if row["timing_valid"] else "not valid")


_SPEEDUP = _timed("speed-up", "speedup", numbers.times, "×")
_EFFICIENCY = _timed("efficiency", "efficiency", numbers.percent, "%")

_FIGURES: Sequence[Column] = (
    _text("status", status),
    Column(title="seeds ok", text=lambda row: f"{row['n_ok']}/{row['n_seeds']}"),
    Column(
        title="seeds timed", text=lambda row: f"{row['n_timed'] if row['timing_valid'] is True else 0}/{row['n_ok']}"
    ),
    _timed("time [s]", "time_s"),
    _timed("total [s]", "total_s"),
    _measured("val. accuracy", "val_accuracy", _three),
    _measured("test accuracy", "accuracy", _three),
    replace(_SPEEDUP, text=lambda row: "1× (baseline)" if _is_baseline(row) else _SPEEDUP.text(row)),
    replace(_EFFICIENCY, text=lambda row: "" if _is_baseline(row) else _EFFICIENCY.text(row)),
    _timed("epoch [s]", "epoch_s"),
    _measured("first epoch [s]", "first_epoch_s"),
    _measured("to target [s]", "time_to_target_s"),
    _measured("speed-up to target", "speedup_to_target", numbers.times, "×"),
    _measured("energy [J]", "energy_j"),
    _measured("energy [J/sample]", "energy_j_per_sample"),
    _measured("power [W]", "power_w"),
    _measured("GPU use", "gpu_util", numbers.percent, "%"),
    _measured("memory [GB]", "peak_memory_gb"),
    _measured("trial cost", "cost"),
    _text("note", lambda row: str(row["note"])),
)

_TRIAL: Sequence[Column] = (
    _measured("seed", "seed", lambda value: f"{value:.0f}"),
    _text("status", lambda row: str(row["status"])),
    _timed("epoch [s]", "epoch_s"),
    _measured("test accuracy", "accuracy", _three),
    _measured("val. accuracy", "val_accuracy", _three),
    _measured("to target [s]", "time_to_target_s"),
    _measured("wall [s]", "wall_s"),
    _text("timing", _timing),
    _text("note", lambda row: str(row["note"])),
    _text("trial", lambda row: str(row["trial_id"])),
)
