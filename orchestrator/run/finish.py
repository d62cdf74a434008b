"""The end of a sweep: its tables and its report are written, and the problems collected that need attention.

The tables are written before everything else, and no failure of a later step affects them. The answer is printed next:
`report.html` takes seconds.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pandas as pd
from rich.console import Console

from orchestrator.analysis.curve_frame import WITH_CURVE, curves_frame
from orchestrator.analysis.trials import collect
from orchestrator.config.commands import shell_word
from orchestrator.config.overrides import literal
from orchestrator.config.request import Request, Terms
from orchestrator.decision.claim_expressions import Claim
from orchestrator.decision.claim_verdicts import Verdict, verdicts
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import Recommendation, not_made
from orchestrator.store import files
from orchestrator.store.files import write_whole
from orchestrator.store.history import History
from orchestrator.store.lock import driver_of
from orchestrator.store.record import TrialRecord
from orchestrator.store.results import Problem
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.tables.critical_batch import CRITICAL_BATCH, critical_batch
from orchestrator.tables.predictions import CLAIMS, claims_document, forecast_document
from orchestrator.tables.recommendation import recommendation_json, recommendation_markdown
from orchestrator.tables.scaling import scaling
from orchestrator.tables.sweep_end import SweepEnd
from orchestrator.tables.table_files import parquet, write_tables
from orchestrator.tables.terminal import show_problems
from orchestrator.text.text_tables import Document
from sweeps.rank_exit import reason_of
from sweeps.status import Status
from sweeps.trial import TrialSpec

_NUMBER = re.compile(r"\d+(\.\d+)?")
_FAILING: Mapping[str | None, Sequence[str]] = {
    None: (),
    "refuted": ("refuted",),
    "inconclusive": ("refuted", "inconclusive"),
}
"""The verdicts that fail the sweep, by `claims.fail_on`."""

Made = TypeVar("Made")


def tables_written(
    request: Request,
    folder: ResultsFolder,
    history: History,
    *,
    arguments: Sequence[str] | None = None,
    planned: Sequence[TrialSpec] | None = None,
    problems: Sequence[Problem] = (),
    in_time: bool = True,
) -> SweepEnd:
    """Write the tables and the recommendation, and return how the sweep ended.

    `arguments` are the command line that a command for more seeds repeats; None: that of the last driver. Without
    `planned`, the journal says what is missing. `problems` are known before. `in_time`: whether there is time
    for `report.html`, which `write_slow_files` writes.

    Raises OSError if the tables cannot be written or the disk is full. Any other failure becomes a problem and does not
    affect the other steps.
    """
    ends = history.ends
    missing = history.not_run if planned is None else sum(trial.trial_id not in ends for trial in planned)
    # A driver that writes its own tables runs nothing any more.
    runs = planned is None and bool(driver_of(folder))
    # A journal may hold trials of a wider grid, which are no part of this run.
    ids = {trial.trial_id for trial in planned or ()} or set(ends)
    of_trials = trial_problems(folder, [record for record in ends.values() if record.trial_id in ids])
    not_run = [Problem(label="Not run", what=have_not_run(missing), fails=True)] if missing else []
    if runs:
        so_far = f"{len(ends)} of {max(history.planned, len(ends))} trials so far"
        watch = shell_word(f"results_dir={literal(str(folder.root))}")
        not_run = [Problem(label="Running", what=f"{so_far}; mode=watch {watch} shows them")]
    if not ends:
        return SweepEnd(
            folder=folder,
            trials=pd.DataFrame(),
            cells=pd.DataFrame(),
            recommendation=not_made(Terms.of(request, {})),
            problems=[*problems, *not_run],
            missing=missing,
        )
    records = list(ends.values())
    arguments = history.driver.get("arguments") or () if arguments is None else arguments
    trials, cells, terms = collect(request, records, arguments)
    terms = replace(terms, unfinished=runs or (history.is_unfinished if planned is None else missing > 0), runs=runs)
    steps = _Steps(folder)
    claims = [Claim.of(claim) for claim in request.settings.sweep.claims]
    claim_verdicts = steps.run(CLAIMS, lambda: verdicts(claims, trials, cells)) if claims else []
    recommendation = steps.run("the recommendation", lambda: decide(trials, cells, terms, claim_verdicts or ()))
    recommendation = recommendation or not_made(terms)

    # The tables come before the report, which may fail.
    makers: Mapping[str, Callable[[], Document | None]] = {
        CLAIMS: lambda: claims_document(claim_verdicts, request.settings.sweep.name) if claim_verdicts else None,
        "scaling.md": lambda: scaling(trials, cells),
        CRITICAL_BATCH: lambda: critical_batch(trials, cells, terms, request.reference_batch_size),
        "forecast.md": lambda: forecast_document(records),
    }
    made = {file: steps.run(file, make) for file, make in makers.items()}
    documents = {file: document for file, document in made.items() if document is not None}
    texts = _texts(recommendation, trials, str(cells["sweep"].iloc[0]), documents)
    write_tables(folder, trials, cells, texts, terms.metric)
    of_request = _problems_of_request(request, recommendation, claim_verdicts)
    return SweepEnd(
        folder=folder,
        trials=trials,
        cells=cells,
        recommendation=recommendation,
        documents=documents,
        driver=history.driver,
        fingerprint=history.fingerprint or {},
        problems=[*steps.problems, *problems, *of_trials, *of_request, *not_run],
        missing=missing,
        has_page=request.settings.report.html and in_time,
    )


def _texts(
    recommendation: Recommendation, trials: pd.DataFrame, sweep: str, documents: Mapping[str, Document]
) -> dict[str, str]:
    """Return the texts of the recommendation's files, of the documents and of their numbers, by the files' names."""
    # All files of one report together: a reader must not find a new table beside an old recommendation.
    texts = {
        "recommendation.md": recommendation_markdown(recommendation, trials, sweep),
        "recommendation.json": recommendation_json(recommendation, sweep),
    }
    for file, document in documents.items():
        texts[file] = document.text
        if document.rows is not None:
            texts[f"{Path(file).stem}.csv"] = document.rows.to_csv(index=False)
    return texts


def have_not_run(count: int) -> str:
    """Return the line on planned trials that have not run; after an interrupt the count may be 0."""
    return f"{count} planned {'trial has' if count == 1 else 'trials have'} not run; the same command continues"


def trial_problems(folder: ResultsFolder, records: Sequence[TrialRecord]) -> list[Problem]:
    """Return a problem for each reason why trials failed, with what to do, and for each budget that ran out.

    Other statuses are in the tables. Reasons that differ only in numbers (a batch size, a shape) are merged; the first
    one's text is shown.
    """
    # Hundreds of trials may fail for one reason, and the reader needs it once.
    by_note: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.status is Status.FAILED:
            by_note.setdefault(_NUMBER.sub("", reason_of(record.note)), []).append(record)
    problems = []
    for failed in by_note.values():
        first = failed[0]
        hint = f"rerun=failed runs {'them' if len(failed) > 1 else 'it'} again"
        evidence = folder.evidence_of(first.trial_id)
        line = f"{len(failed)} of {len(records)} trials failed ({hint}): {first.note} (see {evidence})"
        problems.append(Problem(label="Failed", what=line, fails=True))
    used_up = Counter(record.note for record in records if record.skipped_by == "budget")
    for note, count in used_up.items():
        line = f"{count} of {len(records)} trials are missing: {note}; raise it to run them"
        problems.append(Problem(label="Budget", what=line, fails=True))
    return problems


def _problems_of_request(
    request: Request, recommendation: Recommendation, claim_verdicts: Sequence[Verdict] | None
) -> Iterator[Problem]:
    """Yield a problem for a price of GPUs where there are none, and for each claim with a verdict that fails the sweep.

    `claim_verdicts` is None if judging failed.
    """
    if request.settings.report.price_per_gpu_hour is not None and recommendation.on_cpu:
        what = "report.price_per_gpu_hour is that of a GPU, and these trials ran on CPUs: their cost stays empty"
        yield Problem(label="Cost", what=what)
    failing = _FAILING[request.settings.claims.fail_on]
    failed = [verdict for verdict in claim_verdicts or () if verdict.verdict in failing]
    lines = [f"{verdict.claim.sentence!r} is {verdict.verdict}" for verdict in failed]
    if failing and claim_verdicts is None:
        lines = ["the claims could not be judged"]
    yield from (Problem(label="Claim", what=f"{line} (claims.fail_on)", fails=True) for line in lines)


def write_slow_files(end: SweepEnd, console: Console) -> list[Problem]:
    """Write the files that take seconds and do not change the answer: curves and report.html.

    Print and return the problems with them. Raises OSError if the disk is full.
    """
    if not end.has_page:
        return []
    steps = _Steps(end.folder)
    # The summary is on the screen by now, and the reader may wonder why the command does not end.
    with console.status("writing the report …") if console.is_terminal else nullcontext():
        # The curves are read only here: in a large sweep that takes long, and the answer does not need them.
        with_curve = end.trials.loc[end.trials["status"].isin(WITH_CURVE), "trial_id"]
        damaged: list[Problem] = []
        read = steps.run("the curves", lambda: curves_frame(end.folder, with_curve))
        if read is not None:
            curves, damaged = read
            end = replace(end, curves=curves, problems=[*end.problems, *damaged])
            steps.run("curves.parquet", lambda: write_whole(end.folder.table("curves.parquet"), parquet(curves)))

            def write_page() -> list[Problem]:
                from orchestrator.report.page import write_report  # imports Jinja

                return write_report(end)

            damaged += steps.run("report.html", write_page) or ()
    problems = [*damaged, *steps.problems]
    show_problems(problems, console)
    return problems


class _Steps:
    """Runs steps one by one; a step that fails does not stop the others."""

    def __init__(self, folder: ResultsFolder) -> None:
        self._folder = folder
        self.problems: list[Problem] = []

    def run(self, what: str, step: Callable[[], Made]) -> Made | None:
        """Return the step's result; None if it fails, with a problem, and its trace in a file.

        Raises OSError if the disk fails.
        """
        try:
            return step()
        except Exception as error:  # no failure may cost the user the other results
            if isinstance(error, OSError) and files.fails(error):
                raise  # the user must learn what the disk needs
            trace = self._folder.report_trace
            line = f"{what} could not be made: {type(error).__name__}: {error} (see {trace})"
            self.problems.append(Problem(label="Failed", what=line))
            with suppress(OSError):  # the line above reports the error without its trace
                write_whole(trace, traceback.format_exc().encode(errors="replace"))
        return None
