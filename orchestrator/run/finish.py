"""The end of a sweep: writes its tables and report, prints them with what failed and why, and gives the exit status.

The tables are written before everything else, and no failure of a later step affects them. The answer is printed next:
`report.html` takes seconds.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pandas as pd
from rich.console import Console

from orchestrator.analysis.curves import WITH_CURVE, curves_frame
from orchestrator.analysis.trials import collect
from orchestrator.config.request import Request
from orchestrator.decision.claims import Claim
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import not_made
from orchestrator.decision.verdicts import Verdict, verdicts
from orchestrator.report.facts import ReportData, trained
from orchestrator.store import files
from orchestrator.store.files import write_whole
from orchestrator.store.history import History
from orchestrator.store.record import TrialRecord
from orchestrator.store.results import Finding
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.tables.claims import claims_document
from orchestrator.tables.critical_batch import critical_batch
from orchestrator.tables.files import write_curves, write_tables
from orchestrator.tables.forecast import forecast_document
from orchestrator.tables.recommendation import recommendation_json, recommendation_markdown
from orchestrator.tables.scaling import scaling
from orchestrator.text.rows import Document
from sweeps.status import Status
from sweeps.trial import TrialSpec

CLAIMS = "claims.md"
CRITICAL_BATCH = "critical_batch.md"
_NUMBER = re.compile(r"\d+(\.\d+)?")
_FAILING: Mapping[str | None, Sequence[str]] = {
    None: (),
    "refuted": ("refuted",),
    "inconclusive": ("refuted", "inconclusive"),
}
"""The verdicts that fail the sweep, by `claims.fail_on`."""

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """How a sweep ended: what was written, what failed, and what is missing."""

    layout: ResultsFolder
    report: Report | None = None  # None if no trial has ended
    ends: Sequence[TrialRecord] = ()  # the records of the planned trials; without a plan, of all trials in the journal
    missing: int = 0  # the number of planned trials without a record, because the sweep was interrupted
    findings: Sequence[Finding] = ()  # damaged files in the results directory
    failed_claims: Sequence[str] = ()
    """A line for each claim that fails the sweep by `claims.fail_on`, with its verdict."""

    @staticmethod
    def of(
        request: Request,
        layout: ResultsFolder,
        history: History,
        *,
        planned: Sequence[TrialSpec] | None = None,
        findings: Sequence[Finding] = (),
        in_time: bool = True,
    ) -> SweepSummary:
        """Write the tables of the sweep. Without `planned`, the journal says what is missing.

        `in_time`: whether there is time for `report.html`, which `complete` writes.
        """
        rows = history.rows
        missing = sum(trial.trial_id not in rows for trial in planned or ())
        if not rows:
            return SweepSummary(layout=layout, missing=missing, findings=findings)
        unfinished = history.is_unfinished if planned is None else missing > 0
        report = report_on(request, layout, history, findings=findings, unfinished=unfinished, in_time=in_time)
        # A journal may hold trials of a wider grid, which are no part of this run.
        ids = {trial.trial_id for trial in planned or ()} or set(rows)
        failing, judged = _FAILING[request.settings.claims.fail_on], report.verdicts
        failed_claims = ["the claims could not be judged"] if failing and judged is None else []
        for verdict in judged or ():
            if verdict.verdict in failing:
                failed_claims.append(f"{verdict.claim.sentence!r} is {verdict.verdict}")
        return SweepSummary(
            layout=layout,
            report=report,
            ends=tuple(record for record in rows.values() if record.trial_id in ids),
            missing=missing,
            findings=report.data.findings,
            failed_claims=failed_claims,
        )

    @property
    def exit_status(self) -> int:
        """0 if every planned trial has a result or was skipped, though not by a budget, and no claim fails; else 1."""
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
        # Hundreds of trials may fail for one reason, and the reader needs it once.
        by_note: dict[str, list[TrialRecord]] = {}
        for record in self.ends:
            if record.status is Status.FAILED:
                by_note.setdefault(_NUMBER.sub("#", record.note), []).append(record)
        lines = []
        for records in by_note.values():
            first = records[0]
            trace = self.layout.trace(first.trial_id)
            # A rank that was killed leaves no trace.
            place = trace if trace.exists() else self.layout.trial(first.trial_id)
            hint = f"rerun=failed runs {'them' if len(records) > 1 else 'it'} again"
            lines.append(f"{len(records)} of {len(self.ends)} trials failed ({hint}): {first.note} (see {place})")
        return lines

    def show(self, console: Console, took_s: float | None = None) -> None:
        """Print the results and everything that needs attention; `took_s` is the time that this driver needed."""
        problems = [("Damaged", str(finding)) for finding in self.findings]
        problems += [("Failed", line) for line in self.failures()]
        problems += [("Budget", line) for line in self.over_budget()]
        problems += [("Claim", f"{claim} (claims.fail_on)") for claim in self.failed_claims]
        if self.missing:
            problems.append(("Not run", have_not_run(self.missing)))
        if self.report:
            self.report.show(console, self.layout, took_s, problems)
            return
        for label, text in problems:
            console.print(f"{label}: {text}", markup=False, soft_wrap=True)
        console.print(f"journal: {self.layout.journal}", markup=False, soft_wrap=True)

    def complete(self, console: Console) -> None:
        """Write the files that take seconds, and print what went wrong with them."""
        if self.report is None:
            return
        # The summary is on the screen by now, and the reader may wonder why the command does not end.
        with console.status("writing the report …") if console.is_terminal else nullcontext():
            findings, troubles = self.report.write_rest(self.layout)
        for label, text in [
            *(("Damaged", str(finding)) for finding in findings),
            *(("Failed", text) for text in troubles),
        ]:
            console.print(f"{label}: {text}", markup=False, soft_wrap=True)


def have_not_run(count: int) -> str:
    """Return the line on planned trials that have not run; after an interrupt the count may be 0."""
    return f"{count} planned {'trial has' if count == 1 else 'trials have'} not run; the same command continues"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The written tables, and the rest that follows from the same values."""

    data: ReportData  # what report.html shows; its learning curves have not been read yet
    verdicts: Sequence[Verdict] | None  # the verdicts on the sweep's claims; None if judging failed
    documents: Mapping[str, Document]  # by the name of the file
    troubles: Sequence[str]  # a line for each step that failed, with the file that has the trace
    has_page: bool  # whether `write_rest` writes report.html

    def show(
        self,
        console: Console,
        layout: ResultsFolder,
        took_s: float | None = None,
        problems: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Print the summary."""
        from orchestrator.tables.terminal import SweepEnd, show

        counts = Counter(verdict.verdict for verdict in self.verdicts or ())
        claims = [("Claims", f"{', '.join(f'{n} {word}' for word, n in counts.items())} (tables/{CLAIMS})")]
        notes = [*(claims if counts else ()), *(document.line for document in self.documents.values() if document.line)]
        data = self.data
        end = SweepEnd(
            recommendation=data.recommendation,
            trials=data.trials,
            cells=data.cells,
            trained=trained(data.trials, data.fingerprint, most=40),
            took_s=took_s,
            files=str(layout.page if self.has_page else layout.tables),
            problems=[*(("Failed", trouble) for trouble in self.troubles), *problems, *notes],
        )
        show(end, console)

    def write_rest(self, layout: ResultsFolder) -> tuple[Sequence[Finding], Sequence[str]]:
        """Write the files that take seconds and do not change the answer: curves and report.html.

        Return further findings, and a line for each step that failed. Raises OSError if the disk is full.
        """
        if not self.has_page:
            return (), ()
        steps = _Steps(layout)
        data = self.data
        # The curves are read only here: in a large sweep that takes long, and the answer does not need them.
        read = steps.run("the curves", lambda: _read_curves(layout, data.trials))
        if read is None:
            return (), steps.troubles
        curves, new_findings = read
        data = replace(data, curves=curves, findings=[*data.findings, *new_findings])
        steps.run("curves.parquet", lambda: write_curves(layout, data.curves))

        def write_page() -> list[Finding]:
            from orchestrator.report.page import write_report  # imports Jinja

            return write_report(data, layout)

        unsound = steps.run("report.html", write_page)
        return [*new_findings, *(unsound or ())], steps.troubles


def report_on(
    request: Request,
    layout: ResultsFolder,
    history: History,
    *,
    findings: Sequence[Finding] = (),
    unfinished: bool = False,
    in_time: bool = True,
) -> Report:
    """Write the tables and the recommendation of a sweep of which at least one trial has ended.

    `in_time`: whether there is time for `report.html`.
    Raises OSError if the tables cannot be written or the disk is full. Any other failure becomes a line in `troubles`
    and does not affect the other steps.
    """
    records, fingerprint = list(history.rows.values()), history.fingerprint or {}
    trials, cells, terms = collect(request, records, history.driver.get("arguments") or ())
    terms = replace(terms, unfinished=unfinished)
    sweep = str(cells["sweep"].iloc[0])
    steps = _Steps(layout)

    claims = [Claim.of(claim) for claim in request.settings.sweep.claims]
    judged = steps.run(CLAIMS, lambda: verdicts(claims, trials, cells)) if claims else []
    recommendation = steps.run("the recommendation", lambda: decide(trials, cells, terms, judged or ()))
    recommendation = recommendation or not_made(terms)

    # The tables come before the report, which may fail.
    makers: Mapping[str, Callable[[], Document | None]] = {
        CLAIMS: lambda: claims_document(judged, request.sweep.name) if judged else None,
        "scaling.md": lambda: scaling(trials, cells),
        CRITICAL_BATCH: lambda: critical_batch(trials, cells, terms, request.reference_batch_size),
        "forecast.md": lambda: forecast_document(records),
    }
    made = {file: steps.run(file, make) for file, make in makers.items()}
    documents = {file: document for file, document in made.items() if document is not None}
    # All files of one report together: a reader must not find a new table beside an old recommendation.
    texts = {
        "recommendation.md": recommendation_markdown(recommendation, sweep),
        "recommendation.json": recommendation_json(recommendation, sweep),
    }
    for file, document in documents.items():
        texts[file] = document.text
        if document.rows is not None:
            texts[f"{Path(file).stem}.csv"] = document.rows.to_csv(index=False)
    write_tables(layout, trials, cells, texts, terms.metric)
    data = ReportData(
        trials=trials,
        cells=cells,
        recommendation=recommendation,
        further=[table for document in documents.values() for table in document.tables],
        branches=documents[CRITICAL_BATCH].rows if CRITICAL_BATCH in documents else None,
        driver=history.driver,
        fingerprint=fingerprint,
        findings=findings,
    )
    return Report(
        data=data,
        verdicts=judged,
        documents=documents,
        troubles=steps.troubles,
        has_page=request.settings.report.html and in_time,
    )


def _read_curves(layout: ResultsFolder, trials: pd.DataFrame) -> tuple[pd.DataFrame, list[Finding]]:
    """Return the learning curves of the trials as `curves_frame` does, and findings on damaged files."""
    return curves_frame(layout, trials.loc[trials["status"].isin(WITH_CURVE), "trial_id"])


class _Steps:
    """Runs steps one by one; a step that fails does not stop the others."""

    def __init__(self, layout: ResultsFolder) -> None:
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
