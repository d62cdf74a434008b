"""The end of a sweep: writes its tables and report, prints them with what failed and why, and gives the exit status.

The tables are written before everything else, and no failure of a later step affects them.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

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
from orchestrator.store.layout import Layout
from orchestrator.store.record import TrialRecord
from orchestrator.store.results import Finding
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.claims import claims_markdown, claims_table
from orchestrator.tables.critical_batch import branches, critical_batch_table, in_one_line
from orchestrator.tables.files import write_curves, write_latex, write_tables
from orchestrator.tables.loss_distance import distance_table
from orchestrator.tables.recommendation import recommendation_json, recommendation_markdown
from orchestrator.tables.scaling import scaling
from orchestrator.tables.speedup import speedup_markdown
from orchestrator.text.rows import TextTable
from sweeps.status import Status
from sweeps.trial import TrialSpec

CLAIMS = "claims.md"
_WITH_CURVE = (Status.OK.value, Status.DIVERGED.value)
_NUMBER = re.compile(r"\d+(\.\d+)?")

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """How a sweep ended: what was written, what failed, and what is missing."""

    reported: Reported | None
    """None if no trial has ended."""
    findings: Sequence[Finding]
    """Damaged files in the results directory."""
    ends: Sequence[TrialRecord]
    """The records of the planned trials; without a plan, of all trials in the journal."""
    missing: int
    """The number of planned trials without a record, because the sweep was interrupted."""
    layout: Layout
    failed_claims: Sequence[str] = ()
    """A line for each claim that fails the sweep by `claims.fail_on`, with its verdict."""

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
        """Write the tables and the report for these records by trial id.

        `driver` describes the last driver and `fingerprint` its request; `findings` lists known damage. `unfinished`
        is needed if `planned` is empty, and means that planned trials have not run.
        """
        missing = sum(trial.trial_id not in ends for trial in planned)
        if not ends:
            return SweepSummary(reported=None, findings=findings, ends=(), missing=missing, layout=layout)
        reported = report_on(
            request,
            layout,
            list(ends.values()),
            driver=driver or {},
            fingerprint=fingerprint or {},
            findings=findings,
            unfinished=unfinished or missing > 0,
        )
        counted = {trial.trial_id for trial in planned} or set(ends)
        return SweepSummary(
            reported=reported,
            findings=reported.findings,
            ends=tuple(record for record in ends.values() if record.trial_id in counted),
            missing=missing,
            layout=layout,
            failed_claims=reported.failed_claims(request.fail_on),
        )

    @property
    def exit_status(self) -> int:
        """0 if every planned trial has a result or was skipped by a rule of the sweep, and no claim fails; else 1."""
        failed = any(record.status is Status.FAILED for record in self.ends)
        return 1 if failed or self.missing or self.over_budget() or self.failed_claims else 0

    def over_budget(self) -> list[str]:
        """Return a line for each budget that ran out."""
        notes = Counter(record.note for record in self.ends if record.skipped_by == "budget")
        return [
            f"{count} of {len(self.ends)} trials are missing: {note}; raise it to run them"
            for note, count in notes.items()
        ]

    def failures(self) -> list[str]:
        """Return a line for each reason why trials failed, with what to do; other statuses are in the tables.

        Reasons that differ only in numbers (a batch size, a shape) are merged; the first one's text is shown.
        """
        by_note: dict[str, list[TrialRecord]] = {}
        for record in self.ends:
            if record.status is Status.FAILED:
                by_note.setdefault(_NUMBER.sub("#", record.note), []).append(record)
        lines = []
        for alike in by_note.values():
            first = alike[0]
            trace = self.layout.trace(first.trial_id)
            see = trace if trace.exists() else self.layout.trial(first.trial_id)
            hint = f"rerun=failed runs {'them' if len(alike) > 1 else 'it'} again"
            lines.append(f"{len(alike)} of {len(self.ends)} trials failed ({hint}): {first.note} (see {see})")
        return lines

    def show(self, console: Console, took_s: float | None = None) -> None:
        """Print the results and everything that needs attention; `took_s` is the time that this driver needed."""
        problems = [("Damaged", str(finding)) for finding in self.findings]
        problems += [("Failed", line) for line in self.failures()]
        problems += [("Budget", line) for line in self.over_budget()]
        problems += [("Claim", f"{claim} (claims.fail_on)") for claim in self.failed_claims]
        if self.missing:
            problems.append(("Not run", have_not_run(self.missing)))
        if self.reported:
            self.reported.show(console, self.layout, took_s, problems)
            return
        for label, text in problems:
            console.print(f"{label}: {text}", markup=False, soft_wrap=True)
        console.print(f"journal: {self.layout.journal}", markup=False, soft_wrap=True)


def have_not_run(count: int) -> str:
    """Return the line on planned trials that have not run; after an interrupt the count may be 0."""
    return f"{count} planned {'trial has' if count == 1 else 'trials have'} not run; the same command continues"


@dataclass(frozen=True, kw_only=True)
class Further:
    """A document beside those of speed-up and accuracy: claims, scaling laws, distances of loss curves."""

    file: str
    text: str
    """The contents of the file, Markdown."""
    tables: Sequence[TextTable]
    """Its tables for the page and the terminal; empty if the document only explains why there are none."""
    printed: bool = True
    """True if the sweep prints it at its end."""
    rows: pd.DataFrame | None = None
    """Its numbers, for a CSV file beside it and a plot."""
    line: tuple[str, str] | None = None
    """A label and a sentence for the summary."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The written tables and report."""

    trials: pd.DataFrame
    trained: str
    """What was trained, in a few words."""
    shows_all: bool
    cells: pd.DataFrame
    recommendation: Recommendation
    decision: str
    """The recommendation as Markdown."""
    findings: Sequence[Finding]
    judged: Sequence[Verdict] | None
    """The verdicts on the sweep's claims; None if judging failed."""
    further: Sequence[Further]
    troubles: Sequence[str]
    """A line for each step that failed, with the file that has the trace."""
    has_page: bool = False
    """True if report.html was written for these records."""

    def show(
        self, console: Console, layout: Layout, took_s: float | None = None, problems: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Print the summary; before it, with `report.show=all`, the tables as in the files."""
        from orchestrator.tables.terminal import SweepEnd, show

        if self.shows_all:
            for document in self.markdown():
                console.print(document, markup=False, soft_wrap=True)
                console.print()
        verdicts = Counter(each.verdict for each in self.judged or ())
        counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        claims = [("Claims", f"{counted} (tables/{CLAIMS})")] if verdicts else []
        claims += [each.line for each in self.further if each.line]
        end = SweepEnd(
            recommendation=self.recommendation,
            trials=self.trials,
            cells=self.cells,
            trained=self.trained,
            took_s=took_s,
            files=str(layout.page if self.has_page else layout.tables),
            problems=[*(("Failed", trouble) for trouble in self.troubles), *problems, *claims],
        )
        show(end, console)

    def markdown(self) -> list[str]:
        """Return the printed documents, the recommendation and the claims first."""
        first = [each.text for each in self.further if each.file == CLAIMS]
        last = [each.text for each in self.further if each.file != CLAIMS and each.tables and each.printed]
        tables = [speedup_markdown(self.cells), accuracy_markdown(self.cells, self.recommendation.metric)]
        documents = [self.decision, *first, *tables, *last]
        return [document for document in documents if document]

    def tables(self) -> list[TextTable]:
        """Return the tables of the further documents that are printed."""
        return [table for each in self.further if each.printed for table in each.tables]

    def failed_claims(self, fail_on: str | None) -> tuple[str, ...]:
        """Return a line for each claim whose verdict fails the sweep: `fail_on` is None, refuted or inconclusive."""
        failing = {None: (), "refuted": ("refuted",), "inconclusive": ("refuted", "inconclusive")}[fail_on]
        if self.judged is None:
            return ("the claims could not be judged",) if failing else ()
        return tuple(f"{each.claim.sentence!r} is {each.verdict}" for each in self.judged if each.verdict in failing)


@dataclass(frozen=True, kw_only=True)
class _Curves:
    """The learning curves of the trials."""

    rows: pd.DataFrame
    """As returned by `curves.curves_frame`."""
    by_cell: LossCurves
    findings: Sequence[Finding]
    """Damaged metrics files."""


def report_on(
    request: Request,
    layout: Layout,
    records: Sequence[TrialRecord],
    *,
    driver: Mapping[str, Any] | None = None,
    fingerprint: Mapping[str, Any] | None = None,
    findings: Sequence[Finding] = (),
    unfinished: bool = False,
) -> Reported:
    """Write the tables, the recommendation and the report for at least one record.

    Raises OSError if the tables cannot be written or the disk is full. Any other failure becomes a line in `troubles`
    and does not affect the other steps.
    """
    driver = driver or {}
    trials, cells = collect_for(request, records)
    sweep = str(cells["sweep"].iloc[0])
    steps = _Steps(layout)

    claims = [Claim.of(claim) for claim in request.claims]
    curves = steps.run("the curves", lambda: _read_curves(layout, trials)) if needs_curves(claims) else None
    by_cell = curves.by_cell if curves else None
    judged = steps.run(CLAIMS, lambda: verdicts(claims, trials, cells, by_cell)) if claims else []
    terms = Terms.of(request, cell_axes(list(records)), driver.get("arguments"))
    terms = replace(terms, unfinished=unfinished)
    found = steps.run("the recommendation", lambda: decide(trials, cells, terms, judged or ()))
    recommendation = found or not_made(terms)
    decision = recommendation_markdown(recommendation, sweep)
    further = []
    if judged:
        further.append(
            Further(file=CLAIMS, text=claims_markdown(judged, request.sweep.name), tables=[claims_table(judged)])
        )
    if laws := steps.run("scaling.md", lambda: scaling(trials, cells)):
        further.append(Further(file="scaling.md", text=laws[0], tables=laws[1]))
    if branched := steps.run("critical_batch.md", lambda: _critical_batch(request, trials, cells)):
        further.append(branched)
    texts = {"recommendation.md": decision, "recommendation.json": recommendation_json(recommendation, sweep)}
    texts |= {each.file: each.text for each in further}
    texts |= {f"{Path(each.file).stem}.csv": each.rows.to_csv(index=False) for each in further if each.rows is not None}
    write_tables(layout, trials, cells, texts, terms.metric)
    steps.run("the LaTeX tables", lambda: write_latex(layout, cells, terms.metric))

    if request.html:
        curves = curves or steps.run("the curves", lambda: _read_curves(layout, trials))
    from orchestrator.report.facts import trained

    reported = Reported(  # the steps below still add to `further` and `troubles`
        trials=trials,
        trained=trained(trials, fingerprint or {}, most=40),
        shows_all=request.shows_all,
        cells=cells,
        recommendation=recommendation,
        decision=decision,
        judged=judged,
        further=further,
        findings=[*findings, *(curves.findings if curves else ())],
        troubles=steps.troubles,
    )
    if not request.html or not curves:
        return reported
    steps.run("curves.parquet", lambda: write_curves(layout, curves.rows))
    if distances := steps.run("loss_distance.md", lambda: _write_distances(layout, cells, curves.by_cell)):
        further.append(distances)
    known = {"trials": trials, "curves": curves.rows, "driver": driver, "fingerprint": fingerprint or {}}
    unsound = steps.run("report.html", lambda: _write_report(layout, reported, known))
    if unsound is None:
        return reported
    return replace(reported, findings=[*reported.findings, *unsound], has_page=True)


def _critical_batch(request: Request, trials: pd.DataFrame, cells: pd.DataFrame) -> Further | None:
    """Return the critical batch by branching; None without branches."""
    metric, margin, reference = (getattr(request.criteria, key) for key in ("metric", "margin", "reference_batch_size"))
    found = branches(trials, cells, metric, margin, reference)
    if found.empty:
        return None
    table = critical_batch_table(found, metric, margin, reference)
    text = table.document(table.title)
    line = ("Branches", f"critical batch {in_one_line(found)}")
    return Further(file="critical_batch.md", text=text, tables=[table], rows=found, line=line)


def _read_curves(layout: Layout, trials: pd.DataFrame) -> _Curves:
    rows, findings = curves_frame(layout, trials.loc[trials["status"].isin(_WITH_CURVE), "trial_id"])
    return _Curves(rows=rows, by_cell=loss_curves(trials, rows), findings=findings)


def _write_distances(layout: Layout, cells: pd.DataFrame, by_cell: LossCurves) -> Further | None:
    """Write the distances between the cells' loss curves; None if no cell has two seeds."""
    table = distance_table(cells, by_cell)
    if table is None:
        return None
    text = table.document(table.title)
    write_durably(layout.table("loss_distance.md"), text.encode())
    return Further(file="loss_distance.md", text=text, tables=[table], printed=False)


def _write_report(layout: Layout, reported: Reported, known: Mapping[str, Any]) -> list[Finding]:
    """Write the page. Return findings on damaged telemetry."""
    from orchestrator.report.facts import ReportData
    from orchestrator.report.page import write_report  # imports Jinja

    data = ReportData(
        cells=reported.cells,
        recommendation=reported.recommendation,
        further=[table for each in reported.further for table in each.tables],
        branches=next((each.rows for each in reported.further if each.rows is not None), None),
        findings=reported.findings,
        **known,
    )
    return write_report(data, layout)


class _Steps:
    """Runs steps one by one; a step that fails does not stop the others."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.troubles: list[str] = []

    def run(self, what: str, step: Callable[[], Made]) -> Made | None:
        """Return the step's result; None if it fails, with a line in `troubles` and its trace in a file.

        Raises OSError if the disk fails.
        """
        try:
            return step()
        except Exception as error:  # no failure may cost the user the other results
            if isinstance(error, OSError) and files.fails(error):
                raise  # the user must learn what the disk needs
            trace = self._layout.report_trace
            self.troubles.append(f"{what} could not be made: {type(error).__name__}: {error} (see {trace})")
            with suppress(OSError):  # the line above reports the error without its trace
                write_whole(trace, traceback.format_exc().encode(errors="replace"))
        return None
