"""The report: one HTML page with the decision, the charts and the tables. Only this module of the report uses Jinja.

All text is escaped. The page loads nothing, and its content security policy allows only its own style and script.
Charts and large tables are drawn by the script from data in JSON, so that filters apply to all of them; `plots_in`
reads the charts from there, so that no other file is needed to draw them again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.analysis.validity import is_valid
from orchestrator.decision.thresholds import TIE
from orchestrator.report import curve_plots
from orchestrator.report.cell_plots import cell_plots
from orchestrator.report.cell_rows import cell_rows, with_times
from orchestrator.report.page_tables import cell_table, filters, trial_table
from orchestrator.report.plot import Plot, is_on_cpu, script, theme
from orchestrator.report.speedup_plots import largest
from orchestrator.store.files import finite, write_whole
from orchestrator.store.results import Problem
from orchestrator.tables.candidates import IS_BEST, Candidates
from orchestrator.tables.critical_batch import CRITICAL_BATCH
from orchestrator.tables.next_step import next_step
from orchestrator.tables.not_counted import not_counted
from orchestrator.tables.recommendation import TIE_LABEL, in_sentences
from orchestrator.tables.sweep_end import SweepEnd
from orchestrator.text import numbers
from orchestrator.text.cell_labels import seeds_in_words, varying
from orchestrator.text.failed_cells import not_ok
from orchestrator.text.numbers import one_line
from sweeps.printable import HARMFUL, printable
from sweeps.status import Status

BESIDE = "speedup"
"""The chart beside the answers, if it has no panels."""

FIRST_PLOTS = ("trade_off", "combinations")
"""The charts below the answers, as far as they are drawn."""

MOST_CHOICES = 8
"""The most lines of the lists of reasons."""

MOST_COMMAND = 100
"""The most characters of a command among the answers; a longer one is folded."""

_MOST_NOT_OK = 50
"""The most lines on cells that are not ok; the tables hold all."""

_HERE = Path(__file__).parent
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>')


def write_report(end: SweepEnd) -> list[Problem]:
    """Write the page, whole or not at all. Return the problems with damaged telemetry."""
    chosen = curve_plots.chosen_trials(end.cells, end.trials, end.discussed)
    samples, unreadable = curve_plots.samples(end.folder, chosen)
    damaged = [*curve_plots.damaged(end.folder, end.trials["trial_id"]), *unreadable]
    # Damage that the telemetry shows is on the page, too.
    page = rendered(replace(end, problems=[*end.problems, *damaged]), samples)
    write_whole(end.folder.page, page.encode(errors="replace"))
    return damaged


def rendered(end: SweepEnd, samples: Sequence[curve_plots.TelemetrySamples] = ()) -> str:
    """Return the page as HTML; `samples` are telemetry to draw."""
    price = end.recommendation.terms.report.price_per_gpu_hour
    end = replace(end, cells=with_times(end.cells, end.trials, price))
    cells, recommendation = end.cells, end.recommendation
    rows = cell_rows(cells, recommendation)
    plots = plots_of(end, rows, samples)
    drawn = [plot for plot in plots if plot.spec]
    beside = [plot for plot in drawn if plot.name == BESIDE and "facet" not in (plot.spec or {})]
    tables = {
        "cells": cell_table(cells, recommendation),
        "trials": trial_table(end.trials, cells, recommendation.terms.metric),
    }
    # Style and script are inline, so that the page is one file, and allowed by their hashes alone.
    css = (_HERE / "page.css").read_text()
    js = "\n".join((script(), (_HERE / "page.js").read_text()))
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template("page.html.j2").render(
        end=end,
        damaged=[problem for problem in end.problems if problem.where],
        further=[table for document in end.documents.values() for table in document.tables],
        facts=key_facts(end),
        recommendation=recommendation,
        text=in_sentences(recommendation),
        next=next_step(recommendation, end.trials),
        candidates=Candidates.of(recommendation),
        tied=Candidates.tied(recommendation),
        tie_label=TIE_LABEL,
        is_best=IS_BEST,
        tie=f"{numbers.percent(TIE)}%",
        largest_loss=largest(cells, recommendation),
        filters=filters(cells),
        failed=not_ok_lines(cells),
        not_counted=not_counted(end),
        none_ok=bool((cells["n_ok"] == 0).all()),  # then the cells that are not ok come first
        provenance=provenance(end),
        beside=beside[0] if beside else None,
        first=[plot for plot in drawn if plot.name in FIRST_PLOTS],
        plots=[plot for plot in drawn if plot.name not in FIRST_PLOTS and plot not in beside],
        absent=[plot for plot in plots if not plot.spec],
        most=MOST_CHOICES,
        most_command=MOST_COMMAND,
        content=Markup(_content(rows, drawn, tables)),
        css=Markup(css),
        js=Markup(js),
        policy=f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(js)}'; base-uri 'none';"
        " form-action 'none'",
    )


def key_facts(end: SweepEnd) -> list[tuple[str, str]]:
    """Return the facts under the title, as (name, value)."""
    cells, trials = end.cells, end.trials
    # The numbers of trials, so that a reader sees failures before the figures.
    counts = trials["status"].value_counts()
    ok = int(counts.get(Status.OK.value, 0))
    others = ", ".join(f"{count} {status}" for status, count in counts.items() if status != Status.OK.value)
    timed = int(is_valid(trials["timing_valid"]).sum())
    on_cpu = " (gpus counts worker processes)" if is_on_cpu(cells) else ""
    facts = [
        ("training", end.trained(most=60)),
        ("device", end.devices + on_cpu),
        ("trials", f"{len(trials)}: {ok} ok" + (f", {others}" if others else "")),
        ("cells", f"{len(cells)}, {seeds_in_words(cells)} each"),
        ("timings valid", f"{timed} of {ok}"),
    ]
    return facts if facts[0][1] else facts[1:]


def provenance(end: SweepEnd) -> list[tuple[str, str]]:
    """Return training, machine, versions and commit as (name, value); differing values are listed."""
    trials, driver, prefix = end.trials, end.driver, "provenance."
    finished = trials["finished_at"].replace("", None).dropna()
    ended = str(finished.max())[:16].replace("T", " ") + " UTC" if len(finished) else ""
    measured = {"training": end.trained(), "last trial ended": ended, "device": _distinct(trials["device_model"])}
    for column in trials.columns:
        if column.startswith(prefix):
            measured[column.removeprefix(prefix).replace("_", " ")] = _distinct(trials[column])
    packages = driver.get("packages")
    of_driver = {key: value for key, value in driver.items() if key not in ("packages", "command", "arguments")}
    of_driver |= dict(packages) if isinstance(packages, Mapping) else {}
    # A fact of the ranks replaces the driver's, which may run on another machine.
    facts = {str(key).replace("_", " "): str(value) for key, value in of_driver.items() if value} | measured
    return [(key, one_line(facts[key], 2000)) for key in dict.fromkeys([*measured, *facts]) if facts[key]]


def _distinct(column: pd.Series[Any]) -> str:
    values = list(dict.fromkeys(map(numbers.fact, column.dropna())))
    return ", ".join(values[:4]) + (f" and {len(values) - 4} more values" if len(values) > 4 else "")


def not_ok_lines(cells: pd.DataFrame) -> list[str]:
    """Return the lines on cells that are not ok, and how many more there are."""
    lines = not_ok(cells, varying(cells))
    more = len(lines) - _MOST_NOT_OK
    return lines if more <= 0 else [*lines[:_MOST_NOT_OK], f"{more} more lines: see summary.csv"]


def plots_of(
    end: SweepEnd, rows: Sequence[Mapping[str, Any]], samples: Sequence[curve_plots.TelemetrySamples] = ()
) -> list[Plot]:
    """Return all plots of the report, in its order; a plot that cannot be drawn has its reason."""
    branches = end.documents.get(CRITICAL_BATCH)
    return [
        *([] if branches is None or branches.rows is None else [curve_plots.critical_batch(branches.rows)]),
        *cell_plots(end.cells, rows, end.recommendation),
        curve_plots.loss(end.cells, end.trials, end.curves, end.discussed),
        curve_plots.utilisation(end.cells, samples, end.discussed),
        curve_plots.power(end.cells, samples, end.discussed),
    ]


def plots_in(page: str) -> list[Plot]:
    """Return the charts of a page as `rendered` wrote them, with their data. Raises ValueError for another page."""
    element = _DATA.search(page)
    if element is None:
        raise ValueError("this is not the page of a report")
    content = json.loads(element[1])
    plots = []
    for name, plot in content["plots"].items():
        columns = content["data"][plot["data"]]
        for field, values in columns.items():
            # The form of `_by_column`.
            if isinstance(values, Mapping):
                columns[field] = [values["texts"][place] for place in values["places"]]
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        plots.append(Plot(name=name, title=plot["title"], spec=plot["spec"], rows=rows))
    return plots


def _digest(text: str) -> str:
    """Return the hash by which the content security policy allows this style sheet or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode(errors='replace')).digest()).decode()}"


def _content(rows: Sequence[Mapping[str, Any]], drawn: Sequence[Plot], tables: Mapping[str, Any]) -> str:
    """Return the data of the script as JSON that cannot end its element: it has no `<`."""
    # Charts of cells share one set of rows: copies would make the page too large for a mail.
    frames = {"cells": rows} | {plot.name: plot.rows for plot in drawn if plot.rows is not None}
    content = {
        "data": {name: _by_column(frame) for name, frame in frames.items()},
        "plots": {
            plot.name: {"title": plot.title, "spec": plot.spec, "data": "cells" if plot.rows is None else plot.name}
            for plot in drawn
        },
        "tables": tables,
        "themes": {name: theme(name) for name in ("light", "dark")},
    }
    text = json.dumps(finite(content), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A text with `</script>` must not end the element, and a control character must not reach the page.
    return HARMFUL.sub(lambda match: f"\\u{ord(match[0]):04x}", text).replace("<", "\\u003c")


def _by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rows as lists of values by field, which are shorter than a list of objects.

    Numbers have five digits. A field of texts has its distinct texts once, and for each row the place of its text.
    """
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [_short(row.get(name)) for row in rows]
        if all(isinstance(value, str) for value in values):
            places = {text: place for place, text in enumerate(dict.fromkeys(values))}
            columns[name] = {"texts": list(places), "places": [places[text] for text in values]}
        else:
            columns[name] = values
    return columns


def _short(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    return None if pd.isna(value) else bool(value) if value is pd.NA else float(f"{float(value):.5g}")
