"""The end of a sweep: its tables, what failed and why, where the files are, and the exit status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from orchestrator.claim import Claim
from orchestrator.layout import Layout
from orchestrator.record import TrialRecord
from orchestrator.request import Request
from sweeps.status import Status
from sweeps.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What there is to say once nothing runs any more."""

    tables: Sequence[str]
    """Markdown, as in the files."""
    ends: Sequence[TrialRecord]
    """Of the planned trials; of all in the journal where there is no plan."""
    missing: int
    """Planned trials without an end: the sweep was interrupted."""
    layout: Layout
    failed_claims: Sequence[str] = ()
    """Sentences of the claims that `claims.fail_on` lets fail the sweep."""

    @staticmethod
    def of(request: Request, layout: Layout, planned: Sequence[TrialSpec], ends: Mapping[str, TrialRecord]) -> Ending:
        """Write the tables of these ends."""
        from orchestrator.claims_table import claims_markdown, verdicts
        from orchestrator.collector import axis_columns, collect
        from orchestrator.decision import decide
        from orchestrator.published import Published
        from orchestrator.published_table import published_markdown
        from orchestrator.recommendation_table import recommendation_markdown
        from orchestrator.scaling_table import scaling_markdown
        from orchestrator.tables import accuracy_markdown, speedup_markdown, write_tables
        from orchestrator.terms import Terms

        missing = sum(trial.trial_id not in ends for trial in planned)
        if not ends:
            return Ending(tables=(), ends=(), missing=missing, layout=layout)
        trials, summary = collect(
            list(ends.values()),
            scaling=request.scaling,
            baseline=request.baseline,
            reference_batch_size=request.reference_batch_size,
            price_per_gpu_hour=request.price_per_gpu_hour,
            margin=request.margin,
        )
        recommendation = decide(trials, summary, Terms.of(request, axis_columns(list(ends.values()))))
        decided = recommendation_markdown(recommendation, str(summary["sweep"].iloc[0]))
        judged = verdicts([Claim.of(claim) for claim in request.claims], trials, summary)
        claimed = claims_markdown(judged, request.name) if judged else ""
        texts = {"recommendation.md": decided} | ({"claims.md": claimed} if judged else {})
        texts |= {"scaling.md": scaling_markdown(trials, summary)}
        tables = [decided, *([claimed] if judged else []), speedup_markdown(summary), accuracy_markdown(summary)]
        if request.published:
            texts["published.md"] = published_markdown(Published.of(request.published), summary)
            tables.append(texts["published.md"])
        write_tables(layout, trials, summary, texts)
        asked_for = {trial.trial_id for trial in planned} or set(ends)
        of_those = tuple(record for record in ends.values() if record.trial_id in asked_for)
        failing = {None: (), "refuted": ("refuted",), "inconclusive": ("refuted", "inconclusive")}[request.fail_on]
        failed = tuple(each.claim.sentence for each in judged if each.verdict in failing)
        return Ending(tables=tables, ends=of_those, missing=missing, layout=layout, failed_claims=failed)

    @property
    def exit_status(self) -> int:
        """0 if every planned trial has an end that is a result, or was skipped by a rule of the sweep; else 1.

        1 as well where a claim has the verdict that `claims.fail_on` names.
        """
        failed = any(record.status is Status.FAILED for record in self.ends)
        return 1 if failed or self.missing or self.left_out() or self.failed_claims else 0

    def left_out(self) -> list[str]:
        """A line for each budget that ran out."""
        notes = Counter(record.note for record in self.ends if record.skipped_by == "budget")
        return [
            f"{count} of {len(self.ends)} trials are missing: {note}; a larger one runs them"
            for note, count in notes.items()
        ]

    def failures(self) -> list[str]:
        """A line for each reason for which trials failed, with a place to look at; other ends are in the tables."""
        failed = [record for record in self.ends if record.status is Status.FAILED]
        by_note: dict[str, list[TrialRecord]] = {}
        for record in failed:
            by_note.setdefault(record.note, []).append(record)
        return [
            f"{len(alike)} of {len(self.ends)} trials failed: {note} (see {self.layout.trial(alike[0].trial_id)})"
            for note, alike in by_note.items()
        ]

    def show(self, console: Console) -> None:
        """Print all of it."""
        for table in self.tables:
            console.print(table, markup=False, soft_wrap=True)
            console.print()
        for line in self.failures():
            console.print(line, style="bold red", markup=False, soft_wrap=True)
        for line in self.left_out():
            console.print(line, style="bold", markup=False, soft_wrap=True)
        for sentence in self.failed_claims:
            console.print(f"claims.fail_on: {sentence}", style="bold red", markup=False, soft_wrap=True)
        if self.missing:
            console.print(f"{self.missing} planned trials have not run; the same command continues")
        console.print(f"tables: {self.layout.tables}   journal: {self.layout.journal}", markup=False, soft_wrap=True)
