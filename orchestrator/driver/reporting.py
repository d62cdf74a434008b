"""Turns the ends of trials into tables and reports; tables come first, because nothing may lose those."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pandas as pd

from orchestrator.collection.collector import cell_axes, collect_for
from orchestrator.collection.curves import curves_frame
from orchestrator.collection.loss_curves import LossCurves, loss_curves
from orchestrator.config.published import Published
from orchestrator.config.request import Request
from orchestrator.config.terms import Terms
from orchestrator.decision.claim import Claim
from orchestrator.decision.claims import needs_curves, verdicts
from orchestrator.decision.decision import decide
from orchestrator.decision.recommendation import Recommendation, not_made
from orchestrator.decision.verdict import Verdict
from orchestrator.journal.record import TrialRecord
from orchestrator.journal.soundness import Finding
from orchestrator.storage import disk
from orchestrator.storage.durable import write_durably, write_whole
from orchestrator.storage.layout import Layout
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.claims import claims_markdown, claims_table
from orchestrator.tables.curve_distance import distance_table
from orchestrator.tables.files import write_curves, write_latex, write_tables
from orchestrator.tables.published import published_markdown, published_table
from orchestrator.tables.recommendation import recommendation_markdown
from orchestrator.tables.recommendation_json import recommendation_json
from orchestrator.tables.scaling import scaling
from orchestrator.tables.speedup import speedup_markdown
from orchestrator.text.table import TextTable
from sweeps.status import Status

Made = TypeVar("Made")

CLAIMS = "claims.md"

_WITH_CURVE = (Status.OK, Status.DIVERGED)
"""Statuses of trials that have a curve."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known about a results directory besides the ends of its trials."""

    driver: Mapping[str, Any] = field(default_factory=dict)
    """The last driver, as returned by `origin.origin`."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What it was asked to run, as of `setup.asked`."""
    findings: Sequence[Finding] = ()
    unfinished: bool = False
    """Whether planned trials have not run yet."""


@dataclass(frozen=True, kw_only=True)
class _Curves:
    """The trials' learning curves."""

    rows: pd.DataFrame
    """As of `curves.curves_frame`."""
    by_cell: LossCurves
    findings: Sequence[Finding]
    """Damage found in them."""


@dataclass(frozen=True, kw_only=True)
class Further:
    """A further table of a sweep, besides those of its cells' figures."""

    file: str
    text: str
    """Markdown."""
    tables: Sequence[TextTable]
    """The same for the page and the terminal; none if it only explains why there is nothing."""
    printed: bool = True
    """Whether the sweep prints it at its end."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The results of reporting."""

    cells: pd.DataFrame
    recommendation: Recommendation
    decision: str
    """The recommendation as Markdown."""
    findings: Sequence[Finding]
    judged: Sequence[Verdict] | None
    """The verdicts on the sweep's claims; None if they could not be judged."""
    further: Sequence[Further]
    """Tables of claims, of published beside measured figures, and of scaling laws, where there are any."""
    has_page: bool
    """Whether report.html was written for these ends."""
    troubles: Sequence[str]
    """Lines on what could not be made, and where to read why."""

    def markdown(self) -> list[str]:
        """The Markdown tables, as in the files, the recommendation first."""
        first = [each.text for each in self.further if each.file == CLAIMS]
        last = [each.text for each in self.further if each.file != CLAIMS and each.tables and each.printed]
        tables = [self.decision, *first, speedup_markdown(self.cells), accuracy_markdown(self.cells), *last]
        return [table for table in tables if table]

    def tables(self) -> list[TextTable]:
        """The tables of `further` that are printed."""
        return [table for each in self.further if each.printed for table in each.tables]

    def failed_claims(self, fail_on: str | None) -> tuple[str, ...]:
        """The claims that fail the sweep, each with its verdict."""
        failing = {None: (), "refuted": ("refuted",), "inconclusive": ("refuted", "inconclusive")}[fail_on]
        if self.judged is None:
            return ("the claims could not be judged",) if failing else ()
        return tuple(f"{each.claim.sentence!r} is {each.verdict}" for each in self.judged if each.verdict in failing)


def report_on(request: Request, layout: Layout, records: Sequence[TrialRecord], known: Known) -> Reported:
    """Write the tables, the recommendation and the report; needs at least one end.

    Raises OSError if the tables cannot be written or the disk is full. Any other failure is reported in `troubles`
    and does not affect the rest.
    """
    trials, cells = collect_for(request, records)
    steps = _Steps(layout)
    terms = Terms.of(request, cell_axes(list(records)), known.driver.get("arguments"))
    terms = replace(terms, unfinished=known.unfinished)
    claims = [Claim.of(claim) for claim in request.claims]
    read = steps.at("the curves", lambda: _curves(layout, trials)) if needs_curves(claims) else None
    by_cell = read.by_cell if read else None
    judged = steps.at(CLAIMS, lambda: verdicts(claims, trials, cells, by_cell)) if claims else []
    sweep = str(cells["sweep"].iloc[0])
    found = steps.at("the recommendation", lambda: decide(trials, cells, terms, judged or ()))
    recommendation = found or not_made(terms.objective, terms.margin)
    decision = recommendation_markdown(recommendation, sweep)
    further = [
        _claimed(judged, request.sweep.name) if judged else None,
        steps.at("published.md", lambda: _beside(request, cells)),
        steps.at("scaling.md", lambda: _laws(trials, cells)),
    ]
    texts = {"recommendation.md": decision, "recommendation.json": recommendation_json(recommendation, sweep)}
    write_tables(layout, trials, cells, texts | {each.file: each.text for each in further if each})
    steps.at("the LaTeX tables", lambda: write_latex(layout, cells))
    unsound = None
    if request.html:
        read = read or steps.at("the curves", lambda: _curves(layout, trials))
    known = replace(known, findings=[*known.findings, *(read.findings if read else ())])
    if request.html and read:
        steps.at("curves.parquet", lambda: write_curves(layout, read.rows))
        further.append(steps.at("loss_distance.md", lambda: _distances(layout, cells, read.by_cell)))
        tables = [table for each in further if each for table in each.tables]
        data = {"trials": trials, "cells": cells, "recommendation": recommendation, "curves": read.rows}
        unsound = steps.at("report.html", lambda: _written(layout, data | {"further": tables}, decision, known))
    return Reported(
        cells=cells,
        recommendation=recommendation,
        decision=decision,
        judged=judged,
        further=[each for each in further if each],
        findings=[*known.findings, *(unsound or [])],
        has_page=unsound is not None,
        troubles=steps.troubles,
    )


def _claimed(judged: Sequence[Verdict], sweep: str) -> Further:
    return Further(file=CLAIMS, text=claims_markdown(judged, sweep), tables=[claims_table(judged)])


def _beside(request: Request, cells: pd.DataFrame) -> Further | None:
    if not request.published:
        return None
    published = Published.of(request.published)
    text, table = published_markdown(published, cells), published_table(published, cells)
    return Further(file="published.md", text=text, tables=[table])


def _laws(trials: pd.DataFrame, cells: pd.DataFrame) -> Further:
    text, tables = scaling(trials, cells)
    return Further(file="scaling.md", text=text, tables=tables)


def _curves(layout: Layout, trials: pd.DataFrame) -> _Curves:
    with_curve = trials.loc[trials["status"].isin([status.value for status in _WITH_CURVE]), "trial_id"]
    rows, findings = curves_frame(layout, with_curve)
    return _Curves(rows=rows, by_cell=loss_curves(trials, rows), findings=findings)


def _distances(layout: Layout, cells: pd.DataFrame, by_cell: LossCurves) -> Further | None:
    table = distance_table(cells, by_cell)
    if table is None:
        return None
    text = "\n".join([f"# {table.title}", "", *table.markdown()])
    write_durably(layout.table("loss_distance.md"), text.encode())
    return Further(file="loss_distance.md", text=text, tables=[table], printed=False)


def _written(layout: Layout, frames: Mapping[str, Any], decision: str, known: Known) -> list[Finding]:
    """Write the report; returns damage found in addition to what was known."""
    from orchestrator.report.files import write_report
    from orchestrator.report.report_data import ReportData  # half a second of matplotlib

    data = ReportData(**frames, driver=known.driver, asked=known.asked, findings=known.findings)
    return write_report(data, layout, decision)[0]


class _Steps:
    """Runs steps such that no failing step stops the others."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.troubles: list[str] = []

    def at(self, what: str, step: Callable[[], Made]) -> Made | None:
        """The step's result; None if it fails, which is noted with a trace in a file. Raises OSError of the disk."""
        try:
            return step()
        except Exception as error:  # whatever went wrong, the figures matter more than the page about them
            if isinstance(error, OSError) and disk.fails(error):
                raise  # the tables are written by now, but the user must learn what the disk needs
            trace = self._layout.report_trace
            self.troubles.append(f"{what} could not be made: {type(error).__name__}: {error} (see {trace})")
            with suppress(OSError):  # the line above reports it anyway
                write_whole(trace, traceback.format_exc().encode(errors="replace"))
        return None
