"""The page: everything escaped, nothing loaded, no script but its own. The only place that uses Jinja.

Rows as CSV that a spreadsheet takes for data, and not for formulas.

The recommendation in a few large figures, for a reader who has twenty seconds.

Tables as plain values: what a page shows and what it sorts by.

The tables that a page shows: of cells, of trials, of what failed, and of text.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.decision.recommendation import Recommendation, Setting
from orchestrator.report import matplotlib
from orchestrator.report.matplotlib import bars_svg, narrow_bars_svg, panel_svg, swatch_svg
from orchestrator.report.plot import Panel, Plot, number, word
from orchestrator.report.svg import StyleSheet, inlined
from orchestrator.store.history import Finding
from orchestrator.tables.recommendation import RecommendationText
from orchestrator.text import figures
from orchestrator.text.figures import not_a_formula, one_line, suited
from orchestrator.text.rows import Row, cell_label, in_order, status, varying
from orchestrator.text.table import TextTable
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES


def csv_bytes(rows: Sequence[Mapping[str, Any]], *, most: int | None = None) -> bytes:
    """The rows with their heading; empty for what is missing. `most` bytes keep as many whole rows as fit."""
    file = io.StringIO()
    names = list(rows[0]) if rows else []
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([not_a_formula(name) for name in names])
    for row in rows:
        before = file.tell()
        writer.writerow([_value_csv_text(row[name]) for name in names])
        if most is not None and file.tell() > most:
            file.truncate(before)
            break
    return file.getvalue().encode(errors="replace")


def _value_csv_text(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else not_a_formula(value)


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A figure, what it is of, and what it compares with."""

    title: str
    value: str
    beside: str = ""


def tiles(found: Recommendation, *, on_cpu: bool = False) -> list[Tile]:
    """What to use, and what comes of it; nothing where nothing is recommended."""
    by_id = {each.cell_id: each for each in found.shortlist}
    chosen, baseline = (by_id.get(cell_id or "") for cell_id in (found.cell_id, found.baseline_cell_id))
    if chosen is None:
        return []
    return [*_settings(chosen, on_cpu), *_outcomes(found, chosen, None if found.is_baseline else baseline, on_cpu)]


def _settings(chosen: Setting, on_cpu: bool) -> Iterator[Tile]:
    gpus, each, whole = (chosen.values.get(key) for key in ("gpus", "device_batch_size", "global_batch_size"))
    yield Tile(title="worker processes" if on_cpu else "GPUs", value=f"{gpus:g}")
    yield Tile(title="batch", value=f"{whole:,}", beside=f"{each:,} each" if each != whole else "")
    yield Tile(title="learning-rate rule", value=str(chosen.values.get("lr_rule")), beside=_rate(chosen))
    for axis, value in chosen.axes.items():
        if axis not in STANDARD_AXES:
            yield Tile(title=axis, value=str(figures.asked(value)))


def _rate(chosen: Setting) -> str:
    rate = chosen.values.get("lr")
    return f"rate {rate:.4g}" if isinstance(rate, float) else ""


def _outcomes(found: Recommendation, chosen: Setting, baseline: Setting | None, on_cpu: bool) -> Iterator[Tile]:
    purpose = found.measure.partition(" ")[2]
    for quantity in ("time", "energy", "cost"):
        mine = chosen.figures[quantity]
        if math.isnan(mine.value) or (quantity == "cost" and on_cpu):  # there, workers times time
            continue
        other = baseline.figures[quantity].value if baseline else math.nan
        unit = suited(mine.unit, mine.value, other)
        beside = "" if math.isnan(other) else f"baseline {unit.text(other)}: {_as_many(mine.value, other, quantity)}"
        yield Tile(title=f"{quantity} {purpose}", value=unit.text(mine.value), beside=beside)
    accuracy = chosen.figures["val_accuracy"].value
    if not math.isnan(accuracy):
        yield Tile(title="validation accuracy", value=f"{accuracy:.3f}", beside=_change(found, chosen, baseline))


def _as_many(mine: float, other: float, name: str) -> str:
    return f"{figures.times(other / mine)}× as fast" if name == "time" else f"{figures.percent(mine / other)}% of it"


def _change(found: Recommendation, chosen: Setting, baseline: Setting | None) -> str:
    change = chosen.figures["val_accuracy_difference"].value
    if baseline is None or math.isnan(change):
        return ""
    return f"baseline {baseline.figures['val_accuracy'].value:.3f}; {found.margin:g} lower is allowed"


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


_HERE = Path(__file__).parent

MOST_EMBEDDED_BYTES = 200_000
"""Of one picture's data in the page; its file beside the page holds all rows."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """A section that is a table of text."""

    title: str
    about: Sequence[str]
    table: SortableTable
    remarks: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the page shows, in its order."""

    sweep: str
    facts: Sequence[tuple[str, str]]
    recommendation: RecommendationText | None
    tiles: Sequence[Tile]
    certainty: Sequence[tuple[str, str]]
    behind: str
    """How much may be lost by the choice, in a sentence."""
    gpu_counts: Words | None
    front: Words | None
    claims: Sequence[Words]
    findings: Sequence[Finding]
    plots: Sequence[Plot]
    further: Sequence[Words]
    """Behind the tables."""
    cells: SortableTable
    trials: SortableTable
    failed: SortableTable
    none_ok: bool
    """Whether no cell has an ok trial: then what failed comes first."""
    command: str
    provenance: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """A picture as the template has it."""

    plot: Plot
    legend: Sequence[tuple[Markup, str]]
    panels: Sequence[tuple[str, Markup]]
    csv: str
    """In base64."""


def rendered(page: Page) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=False
    )
    sheet = StyleSheet()
    shown = [_shown(plot, sheet) for plot in page.plots if plot.is_drawn]
    absent = [plot for plot in page.plots if not plot.is_drawn]
    css = _css(environment, sheet)
    js = (_HERE / "page.js").read_text()
    values = {**vars(page), "plots": shown, "absent": absent}
    return environment.get_template("page.html.j2").render(
        page=values, css=Markup(css), js=Markup(js), policy=_policy(css, js), key=_key, kind=_kind
    )


def _css(environment: Environment, sheet: StyleSheet) -> str:
    colours = {
        theme: Markup(" ".join(f"--{name}: {pair[number]};" for name, pair in matplotlib.variables().items()))
        for number, theme in enumerate(("light", "dark"))
    }
    source = environment.from_string(str(_HERE.joinpath("page.css").read_text()))
    return source.render(colours) + "\n" + sheet.css


def _policy(css: str, js: str) -> str:
    """Nothing but this very style sheet and this very script."""
    own = f"style-src '{_digest(css)}'; script-src '{_digest(js)}'"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _shown(plot: Plot, sheet: StyleSheet) -> _Shown:
    signs = [
        Markup(inlined(swatch_svg(plot, place), sheet, prefix=f"{plot.name}-l{place}", label="", tooltips={}))
        for place in plot.looks
    ]
    return _Shown(
        plot=plot,
        legend=list(zip(signs, plot.legend, strict=True)),
        panels=[_bars(plot, sheet)] if plot.bars else [_panel(plot, at, sheet) for at in range(len(plot.panels))],
        csv=base64.b64encode(csv_bytes(plot.data, most=MOST_EMBEDDED_BYTES)).decode(),
    )


def _panel(plot: Plot, index: int, sheet: StyleSheet) -> tuple[str, Markup]:
    panel = plot.panels[index]
    label = ": ".join(filter(None, (plot.title, panel.title)))
    svg = panel_svg(plot, panel)
    return panel.title, Markup(
        inlined(svg, sheet, prefix=f"{plot.name}-{index}", label=label, tooltips=_tooltips(panel))
    )


def _tooltips(panel: Panel) -> Mapping[str, Sequence[str]]:
    """The words of each group of points: drawing makes one of the sound and one of the doubtful points of a series."""
    tooltips: dict[str, Sequence[str]] = {}
    for index, series in enumerate(panel.series):
        doubtful = series.doubtful or (False,) * len(series.x)
        for state, group in ((False, "sound"), (True, "doubtful")):
            points = zip(series.tooltips, series.y, doubtful, strict=False)
            tooltips[f"series-{index}-{group}"] = [
                words for words, y, doubt in points if doubt is state and not math.isnan(y)
            ]
    return tooltips


def _bars(plot: Plot, sheet: StyleSheet) -> tuple[str, Markup]:
    """Drawn twice, for screens and for phones: the style sheet shows one of them."""
    form = ".1%" if plot.x.percent else ".3g"
    tooltips = {
        f"bar-{row}-{place}": [f"{bar.label}, {plot.legend[place]}: {part:{form}}"]
        for row, bar in enumerate(plot.bars)
        for place, part in enumerate(bar.parts)
    }
    drawn = {"wide": bars_svg(plot), "narrow": narrow_bars_svg(plot)}
    return "", Markup("").join(
        Markup('<div class="{}">{}</div>').format(
            name,
            Markup(inlined(svg, sheet, prefix=f"{plot.name}-{name}", label=plot.title, tooltips=tooltips)),
        )
        for name, svg in drawn.items()
    )


def _key(cell: Cell) -> str:
    return "" if isinstance(cell.key, float) and math.isnan(cell.key) else str(cell.key)


def _kind(column: Column, cell: Cell) -> Markup:
    kind = "number" if column.numeric else "words" if len(cell.text) > 24 else "short"
    return Markup(' class="{}"').format(kind)


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
    columns = [_text("cell", lambda row: cell_label(row, differing)), _text("status", status), _text("reason", _note)]
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
