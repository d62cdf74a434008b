"""The end of a sweep: its tables, what failed and why, where the files are, and the exit status.

Turns the ends of trials into tables and reports; tables come first, because nothing may lose those.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
from rich.console import Console

from orchestrator.analysis.curves import LossCurves, curves_frame, loss_curves
from orchestrator.analysis.trials import cell_axes, collect_for
from orchestrator.config.request import Request, Terms
from orchestrator.decision.claims import Claim, needs_curves
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import Recommendation, not_made
from orchestrator.decision.verdicts import Verdict, verdicts
from orchestrator.store import files
from orchestrator.store.files import write_durably, write_whole
from orchestrator.store.history import Finding
from orchestrator.store.layout import Layout
from orchestrator.store.record import TrialRecord
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.claims import claims_markdown, claims_table
from orchestrator.tables.files import write_curves, write_latex, write_tables
from orchestrator.tables.loss_distance import distance_table
from orchestrator.tables.recommendation import recommendation_json, recommendation_markdown
from orchestrator.tables.scaling import scaling
from orchestrator.tables.speedup import speedup_markdown
from orchestrator.text.table import TextTable
from sweeps.status import Status
from sweeps.trial import TrialSpec

_NUMBER = re.compile(r"\d+(\.\d+)?")

if TYPE_CHECKING:
    from orchestrator.store.history import Finding


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """Everything to report once nothing runs any more."""

    reported: Reported | None
    """None if no trial has ended."""
    findings: Sequence[Finding]
    """Findings about damaged files in the results directory."""
    ends: Sequence[TrialRecord]
    """How the planned trials ended; without a plan, all trials in the journal."""
    missing: int
    """Planned trials without an end, because the sweep was interrupted."""
    layout: Layout
    failed_claims: Sequence[str] = ()
    """The claims that fail the sweep, as `claims.fail_on` asks, each with its verdict."""

    @staticmethod
    def of(
        request: Request,
        layout: Layout,
        planned: Sequence[TrialSpec],
        ends: Mapping[str, TrialRecord],
        *,
        driver: Mapping[str, Any] | None = None,
        fingerprint: Mapping[str, Any] | None = None,
        findings: Sequence[Finding] = (),
        unfinished: bool = False,
    ) -> SweepSummary:
        """Write the tables and the report for these ends.

        `driver` describes the last driver, as returned by `origin.origin`, and `fingerprint` its request;
        `findings` lists known damage; `unfinished` tells, where the plan is not known, that planned trials have not
        run.
        """
        missing = sum(trial.trial_id not in ends for trial in planned)
        if not ends:
            return SweepSummary(reported=None, findings=findings, ends=(), missing=missing, layout=layout)

        known = Known(
            driver=driver or {}, fingerprint=fingerprint or {}, findings=findings, unfinished=unfinished or missing > 0
        )
        reported = report_on(request, layout, list(ends.values()), known)
        asked_for = {trial.trial_id for trial in planned} or set(ends)
        of_those = tuple(record for record in ends.values() if record.trial_id in asked_for)
        return SweepSummary(
            reported=reported,
            findings=reported.findings,
            ends=of_those,
            missing=missing,
            layout=layout,
            failed_claims=reported.failed_claims(request.fail_on),
        )

    @property
    def exit_status(self) -> int:
        """0 if every planned trial has a result or was skipped by a rule of the sweep; else 1.

        Also 1 if a claim has a verdict on which `claims.fail_on` fails.
        """
        failed = any(record.status is Status.FAILED for record in self.ends)
        return 1 if failed or self.missing or self.left_out() or self.failed_claims else 0

    def left_out(self) -> list[str]:
        """A line for each budget that ran out."""
        notes = Counter(record.note for record in self.ends if record.skipped_by == "budget")
        return [
            f"{count} of {len(self.ends)} trials are missing: {note}; raise it to run them"
            for note, count in notes.items()
        ]

    def failures(self) -> list[str]:
        """A line for each reason why trials failed, and where to look; other ends are in the tables.

        Reasons that differ only in numbers (a batch size, a shape) are merged; the first one's text is shown.
        """
        failed = [record for record in self.ends if record.status is Status.FAILED]
        by_note: dict[str, list[TrialRecord]] = {}
        for record in failed:
            by_note.setdefault(_NUMBER.sub("#", record.note), []).append(record)
        return [
            f"{len(alike)} of {len(self.ends)} trials failed: {alike[0].note} (see {self._place(alike[0])})"
            for alike in by_note.values()
        ]

    def _place(self, record: TrialRecord) -> Path:
        """The most informative file about a failed trial."""
        trace = self.layout.trace(record.trial_id)
        return trace if trace.exists() else self.layout.trial(record.trial_id)

    def show(self, console: Console) -> None:
        """Print all of it."""
        if self.reported:
            self._show_reported(self.reported, console)
        for finding in self.findings:
            console.print(f"warning: {finding}", style="yellow", markup=False, soft_wrap=True)
        for line in self.failures():
            console.print(line, style="bold red", markup=False, soft_wrap=True)
        for line in self.left_out():
            console.print(line, style="bold", markup=False, soft_wrap=True)
        for sentence in self.failed_claims:
            console.print(f"claims.fail_on: {sentence}", style="bold red", markup=False, soft_wrap=True)
        if self.missing:
            console.print(have_not_run(self.missing))
        page = f"report: {self.layout.page}   " if self.reported and self.reported.has_page else ""
        files = f"{page}tables: {self.layout.tables}   journal: {self.layout.journal}"
        console.print(files, markup=False, soft_wrap=True)

    def _show_reported(self, reported: Reported, console: Console) -> None:
        """Print tables: at a terminal as much as fits its width, to a file or pipe the Markdown of the files."""
        if console.is_terminal:
            from orchestrator.tables.terminal import show

            show(reported.cells, reported.recommendation, console, reported.tables())
        else:
            for table in reported.markdown():
                console.print(table, markup=False, soft_wrap=True)
                console.print()
        for trouble in reported.troubles:
            console.print(trouble, style="bold red", markup=False, soft_wrap=True)


def have_not_run(count: int) -> str:
    """The line on planned trials that have not run; 0 is possible, too: an interrupted sweep may have none left."""
    return f"{count} planned {'trial has' if count == 1 else 'trials have'} not run; the same command continues"


Made = TypeVar("Made")

CLAIMS = "claims.md"

_WITH_CURVE = (Status.OK, Status.DIVERGED)
"""Statuses of trials that have a curve."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known about a results directory besides the ends of its trials."""

    driver: Mapping[str, Any] = field(default_factory=dict)
    """The last driver, as returned by `origin.origin`."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """The request, as in `setup.fingerprint`."""
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
    """Tables of claims and of scaling laws, where there are any."""
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

    data = ReportData(**frames, driver=known.driver, fingerprint=known.fingerprint, findings=known.findings)
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
            if isinstance(error, OSError) and files.fails(error):
                raise  # the tables are written by now, but the user must learn what the disk needs
            trace = self._layout.report_trace
            self.troubles.append(f"{what} could not be made: {type(error).__name__}: {error} (see {trace})")
            with suppress(OSError):  # the line above reports it anyway
                write_whole(trace, traceback.format_exc().encode(errors="replace"))
        return None
