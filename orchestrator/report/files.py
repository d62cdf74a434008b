"""Writes the report's files: the page, the Markdown document, and each plot as SVG, PNG and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from orchestrator.analysis.validity import is_valid
from orchestrator.report.cell_plots import cell_plots, memory, why_not_linear
from orchestrator.report.curve_plots import Samples, chosen_trials, damaged, loss, power, samples, utilisation
from orchestrator.report.html import (
    Page,
    TableSection,
    cell_table,
    csv_bytes,
    failed_table,
    rendered,
    text_table,
    tiles,
    trial_table,
)
from orchestrator.report.markdown import ReportData, document, provenance, trained
from orchestrator.report.matplotlib import plot_files
from orchestrator.report.plot import Plot
from orchestrator.store.files import make_directory, write_whole
from orchestrator.store.layout import Layout
from orchestrator.store.results import Finding
from orchestrator.tables.recommendation import in_sentences
from orchestrator.text.table import TextTable
from sweeps.status import Status

_PLOT_FILES = (".svg", ".png", ".csv")


def write_report(data: ReportData, layout: Layout, decision: str = "") -> tuple[list[Finding], list[Path]]:
    """Write the page, the document and the plots, each file whole or not at all.

    `decision` is the recommendation as Markdown. Returns findings on damaged telemetry, and the files' paths.
    """
    found = data.recommendation
    first = [found.cell_id, found.baseline_cell_id] if found else []
    drawn, unreadable = samples(layout, chosen_trials(data.cells, data.trials, first))
    unsound = [*damaged(layout, data.trials["trial_id"]), *unreadable]
    data = replace(data, findings=[*data.findings, *unsound])
    plots = plots_of(data, drawn)
    write_whole(layout.page, rendered(page_of(data, plots)).encode(errors="replace"))
    write_whole(layout.document, document(data, plots, decision).encode(errors="replace"))
    make_directory(layout.plots)
    written = [layout.page, layout.document]
    for plot in plots:
        contents = {".csv": csv_bytes(plot.data), **plot_files(plot)} if plot.is_drawn else {}
        for ending in _PLOT_FILES:
            path = layout.plots / f"{plot.name}{ending}"
            if ending in contents:
                write_whole(path, contents[ending])
                written.append(path)
            else:
                path.unlink(missing_ok=True)  # an earlier report may have drawn this plot
    return unsound, written


def plots_of(data: ReportData, drawn: Sequence[Samples]) -> list[Plot]:
    """Return all plots of the report, in its order; a plot that cannot be drawn has its reason."""
    return [
        *cell_plots(data.cells),
        loss(data.cells, data.trials, data.curves),
        utilisation(data.cells, drawn),
        power(data.cells, drawn),
        memory(data.cells),
        why_not_linear(data.cells),
    ]


def page_of(data: ReportData, plots: Sequence[Plot]) -> Page:
    """Return the contents of the page."""
    found = data.recommendation
    text = in_sentences(found) if found else None
    hidden = ("command", "arguments")
    driver = {key: value for key, value in data.driver.items() if key not in hidden}
    facts = provenance(data.trials, driver, data.fingerprint)
    return Page(
        sweep=data.sweep,
        facts=_facts(data),
        recommendation=text,
        tiles=tiles(found, on_cpu=_on_cpu(data.cells)) if found else [],
        gpu_counts=_section(text.gpu_counts) if text and text.gpu_counts else None,
        front=_section(text.front) if text and text.front else None,
        claims=[_section(table) for table in data.further if table.name == "claims"],
        findings=data.findings,
        plots=plots,
        further=[_section(table) for table in data.further if table.name != "claims"],
        cells=cell_table(data.cells),
        trials=trial_table(data.trials, data.cells),
        failed=failed_table(data.cells),
        none_ok=bool((data.cells["n_ok"] == 0).all()),
        command=str(data.driver.get("command") or ""),
        provenance=facts,
    )


def _section(table: TextTable) -> TableSection:
    return TableSection(title=table.title, about=table.about, table=text_table(table), remarks=table.remarks)


def _facts(data: ReportData) -> list[tuple[str, str]]:
    """Return the facts under the title, as (name, value)."""
    cells, trials = data.cells, data.trials
    counts = trials["status"].value_counts()
    ok = int(counts.get(Status.OK.value, 0))
    others = ", ".join(f"{count} {status}" for status, count in counts.items() if status != Status.OK.value)
    on_cpu = " (gpus counts worker processes)" if _on_cpu(cells) else ""
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


def _on_cpu(cells: pd.DataFrame) -> bool:
    return set(cells["device"].dropna()) == {"cpu"}
