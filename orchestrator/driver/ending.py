"""The end of a sweep: its tables, what failed and why, where the files are, and the exit status."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from orchestrator.config.request import Request
from orchestrator.journal.record import TrialRecord
from orchestrator.storage.layout import Layout
from sweeps.status import Status
from sweeps.trial import TrialSpec

_NUMBER = re.compile(r"\d+(\.\d+)?")

if TYPE_CHECKING:
    from orchestrator.driver.reporting import Reported
    from orchestrator.journal.soundness import Finding


@dataclass(frozen=True, kw_only=True)
class Ending:
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
        asked: Mapping[str, Any] | None = None,
        findings: Sequence[Finding] = (),
        unfinished: bool = False,
    ) -> Ending:
        """Write the tables and the report for these ends.

        `driver` describes the last driver, as returned by `origin.origin`, and `asked` what it was asked to run;
        `findings` lists known damage; `unfinished` tells, where the plan is not known, that planned trials have not
        run.
        """
        missing = sum(trial.trial_id not in ends for trial in planned)
        if not ends:
            return Ending(reported=None, findings=findings, ends=(), missing=missing, layout=layout)
        from orchestrator.driver.reporting import Known, report_on

        known = Known(driver=driver or {}, asked=asked or {}, findings=findings, unfinished=unfinished or missing > 0)
        reported = report_on(request, layout, list(ends.values()), known)
        asked_for = {trial.trial_id for trial in planned} or set(ends)
        of_those = tuple(record for record in ends.values() if record.trial_id in asked_for)
        return Ending(
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
