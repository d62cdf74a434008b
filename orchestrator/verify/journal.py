"""Checks the invariants of a journal's records, which hold whatever happened while they were written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from orchestrator.journal.line import Kind, Record
from sweeps.status import Status


@dataclass(kw_only=True)
class _Trial:
    """The state of one trial after the records read so far."""

    attempt: int = 0
    running: bool = False
    status: Status | None = None
    """How it ended; None if it may run."""


@dataclass(kw_only=True)
class Reading:
    """The result of reading the records in order."""

    violations: list[str] = field(default_factory=list)
    trials: dict[str, _Trial] = field(default_factory=dict)
    rerun: str | Collection[str] = "none"
    """none, failed, all, or the ids of trials that the user named."""
    ended: int | None = None
    """How many planned trials have no end, if the sweep has ended and its tables are written; else None."""

    def take(self, number: int, record: Record) -> None:
        """Read one more record; unknown kinds are ignored."""
        if record.kind != Kind.ENDED:
            self.ended = None
        if record.kind == Kind.SWEEP:
            self.rerun = record.value.get("rerun", "none")
            self._free_what_may_run_again()
        elif record.kind == Kind.SPOILED:
            for trial_id in record.value["trial_ids"]:
                self.trials[trial_id].status = None
        elif record.kind == Kind.TIMED:
            self.trials[record.value["times"]]  # which must be known
        elif record.kind == Kind.ENDED:
            self.ended = record.value["missing"]
        elif record.kind in (Kind.STARTED, Kind.RETRIED, Kind.CUT_OFF, Kind.FINISHED):
            self._take_trial(number, record)

    def _take_trial(self, number: int, record: Record) -> None:
        trial_id, attempt = record.value["trial_id"], record.value["attempt"]
        trial = self.trials.setdefault(trial_id, _Trial())
        where = f"journal record {number}: trial {trial_id}"
        ended_as = trial.status
        if ended_as is not None:
            what = "was started again" if record.kind == Kind.STARTED else "has a second terminal record"
            self.violations.append(f"{where} {what} after it had ended as {ended_as}, and nobody asked for it")
        if record.kind == Kind.STARTED:
            if attempt != trial.attempt + 1:
                self.violations.append(f"{where}: attempt {attempt} follows attempt {trial.attempt}")
            trial.attempt, trial.running, trial.status = attempt, True, None
            return
        if record.kind == Kind.FINISHED:
            status = Status(record.value["status"])
            never_ran = status in (Status.INFEASIBLE, Status.SKIPPED)
            # A trial that was skipped by a rule of the sweep, or did not fit, may run later.
            trial.status = None if record.value.get("skipped_by") or not status.is_final() else status
        else:
            never_ran = False
        if ended_as is None and not never_ran and (not trial.running or attempt != trial.attempt):
            self.violations.append(f"{where}: attempt {attempt} ended as {record.kind}, and had not been started")
        trial.running = False

    def _free_what_may_run_again(self) -> None:
        word, named = (self.rerun, ()) if isinstance(self.rerun, str) else ("none", self.rerun)
        for trial_id, trial in self.trials.items():
            if trial.status is not None and (trial_id in named or not trial.status.stands(word)):
                trial.status = None


def read(records: Iterable[Record]) -> Reading:
    """Read all records, collecting violations."""
    reading = Reading()
    for number, record in enumerate(records, start=1):
        try:
            reading.take(number, record)
        except (KeyError, TypeError, ValueError) as error:
            reading.violations.append(
                f"journal record {number}: a {record.kind} record that makes no sense ({error!r})"
            )
    return reading


def of_the_plan(planned: Sequence[str], ended: Iterable[str], missing: int) -> Iterator[str]:
    """Violations if a sweep has ended without `missing` trials, but planned trials have no end."""
    ends = set(ended)
    without = [trial_id for trial_id in planned if trial_id not in ends]
    if not missing and without:
        yield f"the sweep has ended, and {len(without)} planned trials have no end: {', '.join(without[:5])}"
