"""The HTML page: its tiles, its sortable tables, and its rendering. This is the only module that uses Jinja.

All text is escaped. The page loads nothing, and its content security policy allows only its own style and script.
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
from orchestrator.report.plot import Plot, number, word
from orchestrator.report.svg import StyleSheet, inlined
from orchestrator.store.results import Finding
from orchestrator.tables.recommendation import RecommendationText
from orchestrator.text import figures
from orchestrator.text.figures import not_a_formula, one_line, suited
from orchestrator.text.rows import Row, cell_label, in_order, status, varying
from orchestrator.text.table import TextTable
from sweeps.printable import printable
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES


def csv_bytes(rows: Sequence[Mapping[str, Any]], *, most: int | None = None) -> bytes:
    """Return the rows as CSV with a heading; missing values are empty. At most `most` bytes, in whole rows.

    A spreadsheet reads all values as data, not as formulas.
    """
    file = io.StringIO()
    names = list(rows[0]) if rows else []
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([not_a_formula(name) for name in names])
    for row in rows:
        before = file.tell()
        values = (None if isinstance(row[name], float) and math.isnan(row[name]) else row[name] for name in names)
        writer.writerow(map(not_a_formula, values))
        if most is not None and file.tell() > most:
            file.truncate(before)
            break
    return file.getvalue().encode(errors="replace")


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A large figure at the top of the page, with its title and a comparison."""

    title: str
    value: str
    comparison: str = ""


def tiles(found: Recommendation, *, on_cpu: bool = False) -> list[Tile]:
    """Return what to use and what it yields beside the baseline; nothing without a recommendation.

    Without GPUs there are no costs, which would be the time of the worker processes.
    """
    by_id = {each.cell_id: each for each in found.shortlist}
    chosen, baseline = (by_id.get(cell_id or "") for cell_id in (found.cell_id, found.baseline_cell_id))
    if chosen is None:
        return []
    gpus, each, whole, rate = (
        chosen.values.get(key) for key in ("gpus", "device_batch_size", "global_batch_size", "lr")
    )
    return [
        Tile(title="worker processes" if on_cpu else "GPUs", value=f"{gpus:g}"),
        Tile(title="global batch", value=f"{whole:,}", comparison=f"{each:,} each" if each != whole else ""),
        Tile(
            title="learning-rate rule",
            value=str(chosen.values.get("lr_rule")),
            comparison=f"rate {rate:.4g}" if isinstance(rate, float) else "",
        ),
        *(
            Tile(title=axis, value=str(figures.asked(value)))
            for axis, value in chosen.axes.items()
            if axis not in STANDARD_AXES
        ),
        *_outcome_tiles(found, chosen, None if found.is_baseline else baseline, on_cpu),
    ]


def _outcome_tiles(found: Recommendation, chosen: Setting, baseline: Setting | None, on_cpu: bool) -> Iterator[Tile]:
    purpose = found.measure.partition(" ")[2]
    for quantity in ("time", "energy", "cost"):
        mine = chosen.figures[quantity]
        if math.isnan(mine.value) or (quantity == "cost" and on_cpu):
            continue
        other = baseline.figures[quantity].value if baseline else math.nan
        unit = suited(mine.unit, mine.value, other)
        comparison = ""
        if not math.isnan(other):
            faster, share = (
                f"{figures.times(other / mine.value)}× as fast",
                f"{figures.percent(mine.value / other)}% of it",
            )
            comparison = f"baseline {unit.text(other)}: {faster if quantity == 'time' else share}"
        yield Tile(title=f"{quantity} {purpose}", value=unit.text(mine.value), comparison=comparison)
    accuracy = chosen.figures["val_accuracy"].value
    if not math.isnan(accuracy):
        comparison = ""
        if baseline is not None and not math.isnan(chosen.figures["val_accuracy_difference"].value):
            comparison = f"baseline {baseline.figures['val_accuracy'].value:.3f}; {found.margin:g} lower is allowed"
        yield Tile(title="validation accuracy", value=f"{accuracy:.3f}", comparison=comparison)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: its title, and functions of a row for the text and the sort key."""

    title: str
    text: Callable[[Row], str]
    key: Callable[[Row], float | str]
    """Return the value to sort by; NaN comes last."""
    numeric: bool = True


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A table cell: its text and its sort key."""

    text: str
    key: float | str


@dataclass(frozen=True, kw_only=True)
class SortableTable:
    """A table of the page, without the columns that are empty in every row."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    more: int = 0
    """Rows that are only in the files."""


_HERE = Path(__file__).parent
_LONG_TEXT = 24
"""A text cell with more characters may wrap."""

MOST_EMBEDDED_BYTES = 200_000
"""The most bytes of one plot's data in the page; its CSV file holds all rows."""


@dataclass(frozen=True, kw_only=True)
class TableSection:
    """A section of the page with a table of text."""

    title: str
    about: Sequence[str]
    table: SortableTable
    remarks: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """The contents of the page, in its order."""

    sweep: str
    facts: Sequence[tuple[str, str]]
    recommendation: RecommendationText | None
    tiles: Sequence[Tile]
    gpu_counts: TableSection | None
    front: TableSection | None
    claims: Sequence[TableSection]
    findings: Sequence[Finding]
    plots: Sequence[Plot]
    further: Sequence[TableSection]
    """Sections after the tables."""
    cells: SortableTable
    trials: SortableTable
    failed: SortableTable
    none_ok: bool
    """True if no cell has an ok trial: then the cells that are not ok come first."""
    command: str
    provenance: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class _DrawnPlot:
    """A plot with its SVG, for the template."""

    plot: Plot
    legend: Sequence[tuple[Markup, str]]
    panels: Sequence[tuple[str, Markup]]
    csv: str
    """The data in base64."""


def rendered(page: Page) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=False,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    sheet = StyleSheet()
    plots = [_drawn(plot, sheet) for plot in page.plots if plot.is_drawn]
    colours = {
        theme: Markup(" ".join(f"--{name}: {pair[number]};" for name, pair in matplotlib.variables().items()))
        for number, theme in enumerate(("light", "dark"))
    }
    css = environment.get_template("page.css").render(colours) + "\n" + sheet.css  # the sheet is full only now
    js = (_HERE / "page.js").read_text()
    return environment.get_template("page.html.j2").render(
        page={**vars(page), "plots": plots, "absent": [plot for plot in page.plots if not plot.is_drawn]},
        css=Markup(css),
        js=Markup(js),
        policy=f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(js)}'; base-uri 'none';"
        " form-action 'none'",
        key=lambda cell: "" if isinstance(cell.key, float) and math.isnan(cell.key) else str(cell.key),
        kind=lambda column, cell: "number" if column.numeric else "text" if len(cell.text) > _LONG_TEXT else "short",
    )


def _digest(text: str) -> str:
    """Return the hash by which the content security policy allows this style sheet or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _drawn(plot: Plot, sheet: StyleSheet) -> _DrawnPlot:
    """Draw a plot; its styles are added to the sheet."""
    signs = [
        Markup(inlined(swatch_svg(plot, place), sheet, prefix=f"{plot.name}-l{place}", label="", tooltips={}))
        for place in plot.looks
    ]
    panels = [] if not plot.bars else [("", _drawn_bars(plot, sheet))]
    for index, panel in enumerate(plot.panels):
        label = ": ".join(filter(None, (plot.title, panel.title)))
        prefix = f"{plot.name}-{index}"
        tooltips: dict[str, Sequence[str]] = {}  # the sound and the doubtful points of a series are two groups
        for place, series in enumerate(panel.series):
            doubtful = series.doubtful or (False,) * len(series.x)
            for state, group in ((False, "sound"), (True, "doubtful")):
                points = zip(series.tooltips, series.y, doubtful, strict=False)
                tooltips[f"series-{place}-{group}"] = [
                    words for words, y, doubt in points if doubt is state and not math.isnan(y)
                ]
        svg = inlined(panel_svg(plot, panel), sheet, prefix=prefix, label=label, tooltips=tooltips)
        panels.append((panel.title, Markup(svg)))
    return _DrawnPlot(
        plot=plot,
        legend=list(zip(signs, plot.legend, strict=True)),
        panels=panels,
        csv=base64.b64encode(csv_bytes(plot.data, most=MOST_EMBEDDED_BYTES)).decode(),
    )


def _drawn_bars(plot: Plot, sheet: StyleSheet) -> Markup:
    """Draw the bars twice, for screens and for phones; the style sheet shows one of the two."""
    form = ".1%" if plot.x.percent else ".3g"
    tooltips = {
        f"bar-{row}-{place}": [f"{bar.label}, {plot.legend[place]}: {part:{form}}"]
        for row, bar in enumerate(plot.bars)
        for place, part in enumerate(bar.parts)
    }
    drawn = {"wide": bars_svg(plot), "narrow": narrow_bars_svg(plot)}
    return Markup("").join(
        Markup('<div class="{}">{}</div>').format(
            name,
            Markup(inlined(svg, sheet, prefix=f"{plot.name}-{name}", label=plot.title, tooltips=tooltips)),
        )
        for name, svg in drawn.items()
    )


_LEADING = re.compile(r"-?\d[\d,]*(\.\d+)?(e[-+]\d+)?(?=$|[ %]|×(?!\d))")
"""The number at the start of a text: `1.87× [1.71, 2.04]`; the label of a cell, `2×128 linear`, has none."""
_WORD = re.compile(r"[^\W\d_]+")
_MOST_WORDS = 4
"""A text with a number and more words is a sentence: `2 GPUs with a batch of 32 each`, not `18,278 against 15,974`."""

MOST_ROWS = 300
"""The most rows of a table in the page; the files hold all."""


def cell_table(cells: pd.DataFrame) -> SortableTable:
    """Return a row for each cell, in the order of the speed-up table, with everything that was measured."""
    differing = varying(cells)
    ordered = in_order(cells, [*differing, "device_batch_size", "lr_rule", "gpus"])
    return _table("cells", ordered, [*_places(cells), *_FIGURES])


def trial_table(trials: pd.DataFrame, cells: pd.DataFrame) -> SortableTable:
    """Return a row for each trial."""
    return _table("trials", trials, [*_places(cells), *_TRIAL])


def failed_table(cells: pd.DataFrame) -> SortableTable:
    """Return a row for each cell that is not ok, with the reason."""
    rows = cells[cells["status"] != Status.OK.value]
    differing = varying(cells)
    columns = [
        _text("cell", lambda row: cell_label(row, differing)),
        _text("status", status),
        _text("reason", lambda row: str(row["note"])),
    ]
    return _table("failed", rows, columns)


def text_table(found: TextTable) -> SortableTable:
    """Return a table of text. A column sorts as numbers if all its texts begin with one and none is a sentence."""
    return _table(found.name, found.frame, [_text_column(column, values) for column, values in found.frame.items()])


def _text_column(column: Any, values: pd.Series[Any]) -> Column:
    def text(row: Row) -> str:
        return str(row[column])

    def leading(row: Row) -> float:
        begins = _LEADING.match(text(row))
        return float(begins[0].replace(",", "")) if begins else math.nan

    numeric = all(
        _LEADING.match(str(value)) and len(_WORD.findall(str(value))) <= _MOST_WORDS for value in values if value != ""
    )
    return Column(title=str(column), text=text, key=leading if numeric else text, numeric=numeric)


def _table(name: str, frame: pd.DataFrame, columns: Sequence[Column]) -> SortableTable:
    rows = frame.head(MOST_ROWS).to_dict("records")
    filled = [column for column in columns if any(column.text(row) for row in rows)]
    return SortableTable(
        name=name,
        columns=filled,
        rows=[[Cell(text=one_line(column.text(row), 400), key=column.key(row)) for column in filled] for row in rows],
        more=max(0, len(frame) - MOST_ROWS),
    )


def _places(cells: pd.DataFrame) -> list[Column]:
    """Return the columns that identify a cell."""
    return [
        *(_axis(column, cells) for column in (*varying(cells), "device_batch_size")),
        _text("LR rule", lambda row: str(row["lr_rule"])),
        *(_axis(column, cells) for column in ("gpus", "global_batch_size")),
    ]


def _axis(column: str, cells: pd.DataFrame) -> Column:
    """Return the column of an axis, which sorts as numbers if it holds numbers."""

    def text(row: Row) -> str:
        value = figures.asked(row[column])
        return f"{value:g}" if isinstance(value, float) else str(value)

    def key(row: Row) -> float | str:
        value = row[column]
        return value if isinstance(value, (int, float)) else str(value)

    numeric = pd.api.types.is_numeric_dtype(cells[column])
    return Column(title=word(column, cells), text=text, key=key, numeric=numeric)


def _text(title: str, text: Callable[[Row], str]) -> Column:
    return Column(title=title, text=text, key=text, numeric=False)


def _measured(title: str, column: str, form: figures.Form = figures.number, sign: str = "") -> Column:
    """Return the column of a figure, with its interval if the cell has one."""

    def text(row: Row) -> str:
        lo, hi = number(row.get(f"{column}_lo")), number(row.get(f"{column}_hi"))
        return figures.with_interval(number(row[column]), lo, hi, form, sign)

    return Column(title=title, text=text, key=lambda row: number(row[column]))


def _timed(title: str, column: str, form: figures.Form = figures.number, sign: str = "") -> Column:
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


_SPEEDUP = _timed("speed-up", "speedup", figures.times, "×")
_EFFICIENCY = _timed("efficiency", "efficiency", figures.percent, "%")

_FIGURES: Sequence[Column] = (
    _text("status", lambda row: str(row["status"])),
    Column(title="seeds ok", text=lambda row: f"{row['n_ok']}/{row['n_seeds']}", key=lambda row: number(row["n_ok"])),
    _timed("samples/s", "samples_per_s"),
    replace(_SPEEDUP, text=lambda row: "1× (baseline)" if _is_baseline(row) else _SPEEDUP.text(row)),
    replace(_EFFICIENCY, text=lambda row: "" if _is_baseline(row) else _EFFICIENCY.text(row)),
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
    _text("note", lambda row: str(row["note"])),
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
    _text("note", lambda row: str(row["note"])),
    _text("trial", lambda row: str(row["trial_id"])),
)
