"""One driver's session with a sweep: every event goes into the journal first, then to the screen."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.driver import kept_files
from orchestrator.driver.attempts import Attempts
from orchestrator.driver.interrupt import Interrupt
from orchestrator.driver.live import Display
from orchestrator.driver.trial_folders import TrialFolders, with_remedy
from orchestrator.journal.durations import speed
from orchestrator.journal.journal import Journal
from orchestrator.journal.line import Kind, Record
from orchestrator.journal.outcome import Cause, Outcome
from orchestrator.journal.record import TrialRecord
from orchestrator.journal.standing import Standing
from orchestrator.journal.timing import timing_of
from orchestrator.plan.memory_share import MEASURED, size
from orchestrator.storage.crash_point import Moment, reached
from orchestrator.storage.layout import Layout
from orchestrator.storage.secrets import NO_SECRETS, Secrets
from orchestrator.storage.trial_files import digests
from orchestrator.telemetry.timing_gate import spoiled_beside, why_not
from sweeps.mistakes import MistakesError
from sweeps.status import Status
from sweeps.trial import TrialSpec


class Session:
    """Listens to the trials of a back end."""

    def __init__(
        self,
        layout: Layout,
        journal: Journal,
        display: Display,
        interrupt: Interrupt,
        *,
        retries: int = 0,
        secrets: Secrets = NO_SECRETS,
    ) -> None:
        self._secrets = secrets
        self._layout = layout
        self._folders = TrialFolders(layout, secrets)
        self._journal = journal
        self._display = display
        self._interrupt = interrupt
        self._attempts = Attempts(journal, retries=retries)
        self._standing = Standing()
        for record in journal.records:
            self._standing.take(record)
        ends = self._rows = journal.terminal()
        self._ended = set(ends)
        self._has_result = any(end.status is Status.OK for end in ends.values())
        self._left_out = {key: (end.status, end.note) for key, end in ends.items() if end.skipped_by}
        self.settle()

    def settle(self) -> None:
        """Restore the files of the valid row for trials whose further attempt was cut short."""
        kept_files.settle(self._layout, self._journal.records)

    def to_run_again(self) -> list[TrialSpec]:
        """Trials whose attempt failed since the last call and that get another."""
        return self._attempts.to_run_again()

    def started(self, trial: TrialSpec) -> None:
        """Journal the attempt and prepare the trial's folder.

        An attempt after an interruption or failure continues from the last checkpoint; a rerun
        of a finished trial does not.
        """
        self._layout.refuse_links(trial.trial_id)
        if trial.probes:
            self._display.started(trial)
            reached(Moment.TRIAL_STARTED)
            return
        attempt = self._attempts.begun(trial)
        self._journal.append(Kind.STARTED, {"trial_id": trial.trial_id, "attempt": attempt})
        reached(Moment.TRIAL_STARTED)
        if trial.trial_id in self._ended:
            kept_files.put_aside(self._layout.trial(trial.trial_id))
        self._folders.prepare(trial, continues=attempt > 1 and trial.trial_id not in self._ended)
        self._ended.discard(trial.trial_id)
        self._display.started(trial)
        reached(Moment.TRIAL_PREPARED)

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Extend the learning curve; probes have none."""
        if trial.probes:
            return
        self._folders.extend_curve(trial, rows)
        self._display.reported(trial, rows)
        reached(Moment.ROWS_ADDED)

    def finished(self, trial: TrialSpec, outcome: Outcome) -> None:
        """Journal the end of the attempt: once this returns, a trial that has ended is never run again.

        Raises OSError if the trial met a full disk: it has not failed but waits for space. Raises MistakesError if it
        found the request invalid and no earlier trial has a result.
        """
        if outcome.cause is Cause.DISK:
            raise _of_the_disk(outcome.note, self._layout.trial(trial.trial_id))
        note = self._secrets.text(with_remedy(outcome.note, self._layout.trial(trial.trial_id)))
        outcome = replace(outcome, note=note, trace=self._secrets.text(outcome.trace))
        self._folders.hide_in_logs(trial)
        if outcome.cause is Cause.REQUEST and not self._has_result:
            raise self._no_trial_can(trial, outcome)
        self._has_result |= outcome.status is Status.OK
        if trial.probes:
            (self._timed_again if trial.repeats else self._probed)(trial, outcome)
            return
        if outcome.trace:
            self._folders.write_trace(trial, outcome.trace)
            reached(Moment.TRACE_WRITTEN)
        if value := self._attempts.failed(trial, outcome):
            self._journal.append(Kind.RETRIED, value)
            self._attempts.another(trial)
            self._display.tried_again(trial, outcome)
            reached(Moment.TRIAL_RETRIED)
        else:
            self._end(trial, outcome)
            if outcome.status.is_result() or outcome.skipped_by:
                # After the journal, so that a crash in between can still be continued.
                self._folders.drop_checkpoint(trial)
            self._display.finished(trial, outcome)
            reached(Moment.TRIAL_FINISHED)

    def found_infeasible(self, trials: Iterable[tuple[TrialSpec, str]]) -> None:
        """Journal that these trials cannot be placed on these nodes, each with its reason."""
        self.left_out((trial, Outcome(status=Status.INFEASIBLE, note=reason, wall_s=0.0)) for trial, reason in trials)

    def left_out(self, ends: Iterable[tuple[TrialSpec, Outcome]]) -> None:
        """Journal why these trials were not started, unless the journal says so already; probes have no end."""
        new = [(trial, end) for trial, end in ends if self._left_out.get(trial.trial_id) != (end.status, end.note)]
        for trial, end in new:
            if trial.probes:
                continue
            kept_files.bring_back(self._layout.trial(trial.trial_id))
            self._end(trial, end)
        self._display.skipped(new)

    def found_spoiled(self, trials: Sequence[TrialSpec]) -> None:
        """Something spoiled timings, and these trials repeat them, alone."""
        self._display.once_more(trials)

    def _no_trial_can(self, trial: TrialSpec, outcome: Outcome) -> MistakesError:
        """The error to raise if the first trial finds the request wrong: it has not failed, but waits for another."""
        self._folders.write_trace(trial, outcome.trace)
        return MistakesError([f"{outcome.note} (see {self._layout.trace(trial.trial_id)})"])

    def _probed(self, trial: TrialSpec, outcome: Outcome) -> None:
        value = {
            "trial_id": trial.trial_id,
            "probes": trial.probes,
            "speed": speed(trial.axes),
            "size": size(trial.axes, trial.batch.device_batch_size),
            "gpus": trial.gpus,
            "gpus_held": trial.gpus_held,
            "wall_s": outcome.wall_s,
        }
        ended = {"status": outcome.status.value, "note": outcome.note}
        found = {name: outcome.metrics.get(name) for name in ("samples_per_s", "epoch_s", *MEASURED)}
        self._journal.append(Kind.PROBED, self._secrets.value(value | ended | found))
        self._display.finished(trial, outcome)

    def _timed_again(self, trial: TrialSpec, outcome: Outcome) -> None:
        """Journal the timing, and whether it counts. One that was lost with its node is taken again."""
        row = self._rows[trial.probes]
        timed = {
            **{"trial_id": trial.trial_id, "times": trial.probes, "repeats": trial.repeats, "wall_s": outcome.wall_s},
            **{"status": outcome.status.value, "note": outcome.note, "spoiled": ""},
            **{"gpus": trial.gpus, "gpus_held": trial.gpus_held, "timing": trial.timing},
            **{"metrics": dict(outcome.metrics), "provenance": dict(outcome.provenance)},
        }
        if outcome.status is Status.OK:
            timed |= timing_of(timed)
            timed["spoiled"] = why_not(timed, row, self._rows.values())
        again = self._attempts.failed(trial, outcome) is not None
        self._write(Kind.TIMED, self._secrets.value(timed | {"again": again}))
        if again:
            self._attempts.another(trial)
            self._display.tried_again(trial, outcome)
        else:
            self._folders.drop_checkpoint(trial)
            self._display.finished(trial, outcome)

    def _end(self, trial: TrialSpec, outcome: Outcome) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        attempt = self._attempts.number(trial)
        record = TrialRecord.of(trial, outcome, attempt=attempt, finished_at=now)
        if earlier := self._rows.get(trial.trial_id):
            record = replace(record, spoiled=spoiled_beside(record, earlier, self._rows.values()))
        folder = self._layout.trial(trial.trial_id)
        self._write(Kind.FINISHED, self._secrets.value(record.to_json()) | {"files": digests(folder)})
        kept_files.drop(folder)
        self._ended.add(trial.trial_id)
        self._attempts.over(trial)

    def _write(self, kind: Kind, value: Mapping[str, Any]) -> None:
        """Journal what may change a trial's row, and keep the row as it then is."""
        self._journal.append(kind, value)
        taken = self._standing.take(Record(kind=kind, value=value))
        if taken.kind == Kind.FINISHED:
            self._rows[taken.value["trial_id"]] = TrialRecord.from_json(taken.value)

    def cut_off(self) -> None:
        """Journal how long abandoned attempts had run: they used resources, and may be continued."""
        for value in self._attempts.cut_off():
            self._journal.append(Kind.CUT_OFF, value)

    def ticked(self) -> None:
        """Update the clocks on the screen."""
        self._display.refresh()

    def stopping(self) -> bool:
        """Whether a signal has asked to stop."""
        return self._interrupt.signal is not None


def _of_the_disk(note: str, place: Path) -> OSError:
    """A trial's disk error as the driver's own."""
    number = re.search(r"\[Errno (\d+)\]", note)
    return OSError(int(number[1]) if number else errno.ENOSPC, note, str(place))
