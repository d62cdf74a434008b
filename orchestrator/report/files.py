"""Writes the report's files: the page, the Markdown document, and each plot as SVG and PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.analysis.validity import is_valid
from orchestrator.decision.recommendation import metric_of
from orchestrator.report.cell_plots import cell_plots, cell_rows, largest, with_times
from orchestrator.report.curve_plots import (
    Samples,
    chosen_trials,
    critical_batch,
    damaged,
    loss,
    power,
    samples,
    utilisation,
)
from orchestrator.report.html import Page, cell_table, chances, filters, rendered, tiles, trial_table
from orchestrator.report.markdown import ReportData, document, not_ok_lines, provenance, trained
from orchestrator.report.plot import Plot, is_on_cpu, static_files
from orchestrator.store.files import make_directory, write_whole
from orchestrator.store.layout import Layout
from orchestrator.store.results import Finding
from orchestrator.tables.recommendation import in_sentences
from sweeps.status import Status

_PLOT_FILES = (".svg", ".png")


def write_report(data: ReportData, layout: Layout, decision: str = "") -> tuple[list[Finding], list[Path]]:
    """Write the page, the document and the plots, each file whole or not at all.

    `decision` is the recommendation as Markdown. Returns findings on damaged telemetry, and the files' paths.
    """
    drawn, unreadable = samples(layout, chosen_trials(data.cells, data.trials, data.discussed))
    unsound = [*damaged(layout, data.trials["trial_id"]), *unreadable]
    data = replace(data, findings=[*data.findings, *unsound], cells=with_times(data.cells, data.trials))
    rows = cell_rows(data.cells, data.recommendation)
    plots = plots_of(data, rows, drawn)
    write_whole(layout.page, rendered(page_of(data, plots, rows)).encode(errors="replace"))
    write_whole(layout.document, document(data, plots, decision).encode(errors="replace"))
    make_directory(layout.plots)
    written = [layout.page, layout.document]
    for plot in plots:
        contents = static_files(plot.spec, plot.title, rows if plot.rows is None else plot.rows) if plot.spec else {}
        for ending in _PLOT_FILES:
            path = layout.plots / f"{plot.name}{ending}"
            if ending in contents:
                write_whole(path, contents[ending])
                written.append(path)
            else:
                path.unlink(missing_ok=True)  # an earlier report may have drawn this plot
    return unsound, written


def plots_of(data: ReportData, rows: Sequence[Mapping[str, Any]], drawn: Sequence[Samples]) -> list[Plot]:
    """Return all plots of the report, in its order; a plot that cannot be drawn has its reason."""
    return [
        *([critical_batch(data.branches)] if data.branches is not None else []),
        *cell_plots(data.cells, rows, data.recommendation),
        loss(data.cells, data.trials, data.curves, data.discussed),
        utilisation(data.cells, drawn, data.discussed),
        power(data.cells, drawn, data.discussed),
    ]


def page_of(data: ReportData, plots: Sequence[Plot], rows: Sequence[Mapping[str, Any]]) -> Page:
    """Return the contents of the page; `rows` are those of the cells."""
    found = data.recommendation
    hidden = ("command", "arguments")
    driver = {key: value for key, value in data.driver.items() if key not in hidden}
    return Page(
        sweep=data.sweep,
        facts=_facts(data),
        found=found,
        recommendation=in_sentences(found) if found else None,
        tiles=tiles(found) if found else [],
        chances=[line for line in chances(found) if line] if found else [],
        largest_loss=largest(data.cells, found),
        claims=[table for table in data.further if table.name == "claims"],
        findings=data.findings,
        cell_rows=rows,
        filters=filters(data.cells),
        plots=plots,
        further=[table for table in data.further if table.name != "claims"],
        tables={
            "cells": cell_table(data.cells, metric_of(found)),
            "trials": trial_table(data.trials, data.cells, metric_of(found)),
        },
        failed=not_ok_lines(data.cells),
        none_ok=bool((data.cells["n_ok"] == 0).all()),
        command=str(data.driver.get("command") or ""),
        provenance=provenance(data.trials, driver, data.fingerprint),
    )


def _facts(data: ReportData) -> list[tuple[str, str]]:
    """Return the facts under the title, as (name, value)."""
    cells, trials = data.cells, data.trials
    counts = trials["status"].value_counts()
    ok = int(counts.get(Status.OK.value, 0))
    others = ", ".join(f"{count} {status}" for status, count in counts.items() if status != Status.OK.value)
    on_cpu = " (gpus counts worker processes)" if is_on_cpu(cells) else ""
    fewest, most = int(cells["n_seeds"].min()), int(cells["n_seeds"].max())
    seeds = f"{most} seed{'s' if most > 1 else ''}" if fewest == most else f"{fewest} to {most} seeds"
    finished = trials["finished_at"].replace("", None).dropna()
    training = trained(trials, data.fingerprint, most=60)
    return [
        *([("training", training)] if training else []),
        ("device", ", ".join(map(str, cells["device"].dropna().unique())) + on_cpu),
        ("trials", f"{len(trials)}: {ok} ok" + (f", {others}" if others else "")),
        ("cells", f"{len(cells)}, {seeds} each"),
        ("timings valid", f"{is_valid(trials['timing_valid']).sum()} of {ok}"),
        ("last trial ended", str(finished.max())[:16].replace("T", " ") + " UTC" if len(finished) else "not known"),
    ]
