"""A driver's session with a sweep: every event of a trial goes into the journal first, then to files and the screen."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from orchestrator.config.content_hashes import named_files, source_dir
from orchestrator.plan.estimates import REHEARSED
from orchestrator.plan.plan import MEMORY_METRICS
from orchestrator.plan.rehearsals import Rehearsals
from orchestrator.run.interrupt import Interrupt
from orchestrator.run.live_view import Display
from orchestrator.schedule.retries import is_retried
from orchestrator.store import files
from orchestrator.store.failpoints import Moment, reached
from orchestrator.store.grouping_keys import same_memory, same_speed
from orchestrator.store.journal import Journal
from orchestrator.store.record import OF_TRAINING, Kind, TrialOutcome, TrialRecord
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.store.secrets import NO_SECRETS, Secrets
from orchestrator.store.trial_files import TrialFolders, digests, drop, restore, snapshot
from orchestrator.telemetry.timing_gate import VALID, judgements_of, why_discarded
from orchestrator.trackers.tracking import Trackers
from sweeps.branch import base_of, point_of
from sweeps.errors import ConfigError
from sweeps.identity import COMMAND
from sweeps.rank_exit import Cause
from sweeps.status import Status
from sweeps.trial import Purpose, TrialSpec


class Session:
    """The listener of a back end: journals attempts and keeps the trials' files.

    A probe runs before its trial: it gets one `probed` record and no files. A repetition, which times a finished trial
    again, is journalled like any trial, under its own id and with its own folder; its record names the trial.
    """

    def __init__(
        self,
        folder: ResultsFolder,
        journal: Journal,
        display: Display,
        interrupt: Interrupt,
        *,
        retries: int = 0,
        secrets: Secrets = NO_SECRETS,
        trackers: Trackers | None = None,
        rehearsals: Rehearsals | None = None,
    ) -> None:
        """`retries` is how many further attempts errors and crashes get.

        The forecasts of `rehearsals` are journaled with the trials.
        """
        self._rehearsals = rehearsals or Rehearsals()
        self._folder = folder
        self._journal = journal
        self._history = journal.history
        self._display = display
        self._interrupt = interrupt
        self._retries = retries
        self._trackers = trackers or Trackers({})
        self._folders = TrialFolders(folder, secrets)
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        """Running attempts: by trial, the start on a monotonic clock."""
        self._files: dict[str, Mapping[str, Any]] = {}
        """The states at their start of the files that their commands name, by trial."""
        self.restore_files()

    def restore_files(self) -> None:
        """Restore the files of the attempt that counts for trials whose further attempt was cut short."""
        self._folders.restore_files(self._history)

    def started(self, trial: TrialSpec) -> None:
        """Journal the attempt and prepare the trial's folder.

        An attempt after an interruption or failure continues from the last checkpoint; a rerun of a finished trial does
        not.
        """
        self._folder.refuse_links(trial.trial_id)
        if trial.purpose is Purpose.PROBE:
            self._display.started(trial)
            reached(Moment.TRIAL_STARTED)
            return
        before = self._history.of(trial.trial_id)
        attempt, had_ended = before.attempt + 1, before.ended
        self._running[trial.trial_id] = trial, time.monotonic()
        started = {"trial_id": trial.trial_id, "attempt": attempt}
        # Before anything else: if the driver is killed now, the next one knows that an attempt may have begun.
        self._journal.append(Kind.STARTED, {}, started | ({"measures": trial.measures} if trial.measures else {}))
        reached(Moment.TRIAL_STARTED)
        # The files of the attempt that counts must survive one that may be interrupted.
        if had_ended:
            snapshot(self._folder.trial(trial.trial_id))
        self._folders.prepare(trial, continues=attempt > 1 and not had_ended)
        self._files[trial.trial_id] = file_states(trial)
        self._display.started(trial)
        self._trackers.started(trial)
        reached(Moment.TRIAL_PREPARED)

    def reported(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Extend the learning curve; probes have none."""
        if trial.purpose is Purpose.PROBE:
            return
        self._folders.extend_curve(trial, rows)
        self._display.reported(trial, rows)
        self._trackers.reported(trial, rows)
        reached(Moment.ROWS_ADDED)

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> bool:
        """Journal the end of the attempt. Return whether another one follows; otherwise the trial never runs again.

        Raises OSError if the trial met a full disk: it has not failed but waits for space. Raises ConfigError if it
        found the request invalid and no earlier trial has a result.
        """
        if outcome.cause is Cause.DISK:
            # The driver's own error, with the number of the trial's.
            number = re.search(r"\[Errno (\d+)\]", outcome.note)
            folder = self._folder.trial(trial.trial_id)
            raise OSError(int(number[1]) if number else errno.ENOSPC, outcome.note, str(folder))
        outcome = self._folders.cleaned(trial, outcome)
        if outcome.cause is Cause.REQUEST:
            statuses: list[object] = [end.status.value for end in self._history.all_ends.values()]
            statuses += [probe.get("status") for probe in self._history.probes.values()]
            # Every further trial would fail in the same way, and the user would wait for each.
            if Status.OK not in statuses:
                self._folders.write_trace(trial, outcome.trace)
                raise ConfigError([f"{outcome.note} (see {self._folder.evidence_of(trial.trial_id)})"])
        if trial.purpose is Purpose.PROBE:
            self._journal_probe(trial, outcome)
            self._display.finished(trial, outcome)
            return False
        self._running.pop(trial.trial_id, None)
        if outcome.trace:
            self._folders.write_trace(trial, outcome.trace)
            reached(Moment.TRACE_WRITTEN)
        # After the trace is written: the next attempt may succeed, and the user still wants to know why this one
        # failed.
        if is_retried(outcome.cause, self._history.of(trial.trial_id).failures, self._retries):
            compared = self._attempt(trial) | {"cause": outcome.cause.value, "wall_s": outcome.wall_s}
            self._journal.append(Kind.RETRIED, {"note": outcome.note}, compared)
            self._display.retried(trial, outcome)
            self._trackers.finished(trial, outcome)
            reached(Moment.TRIAL_RETRIED)
            return True
        record = self._journal_end(trial, outcome)
        if outcome.status.is_result() or outcome.skipped_by or trial.measures:
            # After the journal, so that a crash in between can still be continued.
            self._folders.drop_checkpoint(trial)
        judgement = judgements_of([record]).get(record.trial_id, VALID)
        self._display.finished(trial, outcome, judgement, record.disturbed)
        self._trackers.finished(trial, outcome)
        reached(Moment.TRIAL_FINISHED)
        return False

    def copied(self, trial: TrialSpec, original: TrialRecord) -> None:
        """Journal the result of another trial as this one's, which trains in the same way and need not run."""
        self._folder.refuse_links(trial.trial_id)
        attempt = self._history.of(trial.trial_id).attempt + 1
        self._journal.append(Kind.STARTED, {}, {"trial_id": trial.trial_id, "attempt": attempt})
        self._folders.prepare(trial, continues=False)
        self._folders.copy_curve(original.trial_id, trial.trial_id)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = original.copied_to(trial, attempt=attempt, finished_at=now)
        self._append_end(record, {"files": digests(self._folder.trial(trial.trial_id))})
        self._display.copied(trial, original, judgements_of([original]).get(original.trial_id, VALID))

    def timed_with(self, others: Mapping[str, str]) -> None:
        """Journal and show that timings are those of other trials, by trial."""
        for trial_id, other in others.items():
            self._journal.append(Kind.TIMED, {}, {"trial_id": trial_id, "timed_with": other})
        self._display.timed_with(others)

    def drop_branch_point(self, branch: TrialSpec) -> None:
        """Delete the checkpoint that a branch started from."""
        # A checkpoint has the size of the model and its optimizer, and there is one for each point.
        files.remove_folder(self._folder.branch_point(base_of(branch), point_of(branch) or 0))

    def left_out(self, ends: Sequence[tuple[TrialSpec, TrialOutcome]]) -> None:
        """Journal why these trials were not started, unless the journal says so already.

        Probes and repetitions that were left out may come later, and have no end.
        """
        all_ends = self._history.all_ends
        # The same command may run many times while trials wait for room: one record is enough.
        left_out = {key: (end.status, end.note) for key, end in all_ends.items() if not end.ran}
        new = [(trial, end) for trial, end in ends if left_out.get(trial.trial_id) != (end.status, end.note)]
        for trial, end in new:
            if not trial.measures:
                restore(self._folder.trial(trial.trial_id))
                self._journal_end(trial, end)
        self.dequeued([trial for trial, _ in ends])
        self._display.skipped(new)

    def dequeued(self, trials: Sequence[TrialSpec]) -> None:
        """Show these trials as waiting no longer, and journal it of those without an end."""
        self._display.dequeued(trials)
        ended = {end.trial_id for end in self._history.ended_since}
        queued = [trial.trial_id for trial in trials if trial.trial_id in self._history.queued.keys() - ended]
        if queued:
            self._journal.append(Kind.QUEUED, {}, {"shares_s": {}, "left_out": queued})

    def queued(self, shares_s: Mapping[str, float | None], why: str) -> None:
        """Journal and show that further trials are queued, by their shares of a timetable."""
        self._journal.append(Kind.QUEUED, {}, {"shares_s": shares_s})
        self._display.queued(shares_s, why)

    def cut_off(self) -> None:
        """Journal how long abandoned attempts had run: they used resources, and may be continued."""
        now_s, running = time.monotonic(), list(self._running.values())
        self._running.clear()
        # GPU-seconds of abandoned attempts count for the budget of the sweep.
        for trial, began_s in running:
            self._journal.append(Kind.CUT_OFF, {}, self._attempt(trial) | {"wall_s": now_s - began_s})

    def ticked(self) -> None:
        """Update the clocks on the screen."""
        self._display.refresh()

    def stopping(self) -> bool:
        """Return whether a signal has asked to stop."""
        return self._interrupt.signal is not None

    def _attempt(self, trial: TrialSpec) -> dict[str, Any]:
        attempt = self._history.of(trial.trial_id).attempt
        return {"trial_id": trial.trial_id, "attempt": attempt, "gpus_held": trial.gpus_held}

    def _journal_probe(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        compared = {
            "trial_id": trial.trial_id,
            "measures": trial.measures,
            "gpus": trial.gpus,
            "gpus_held": trial.gpus_held,
            "wall_s": outcome.wall_s,
            "status": outcome.status.value,
        }
        figures = {
            name: outcome.metrics.get(name) for name in ("samples_per_s", "epoch_s", "sequence_length", *MEMORY_METRICS)
        }
        # These contain values of axes, which the user's config may take from the environment.
        axes = {
            "speed": same_speed(trial.axes),
            "size": same_memory(trial.axes, trial.batch.device_batch_size),
        }
        self._journal.append(Kind.PROBED, {**axes, "note": outcome.note, **figures}, compared)

    def _journal_end(self, trial: TrialSpec, outcome: TrialOutcome) -> TrialRecord:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        attempt = self._history.of(trial.trial_id).attempt
        # Forecast and measurement in one record: later the rehearsals may have been made again.
        record = TrialRecord.of(trial, outcome, attempt=attempt, finished_at=now)
        forecast = self._rehearsals.forecast(trial)
        record = replace(
            record,
            disturbed=why_discarded(record, self._history.all_ends),
            forecast=forecast.figures() if forecast and forecast.source == REHEARSED else {},
        )
        folder = self._folder.trial(trial.trial_id)
        before = self._files.pop(trial.trial_id, {})
        # A file that every trial writes is an output of the command, and must not identify trials.
        rewritten = [name for name, state in file_states(trial).items() if before.get(name) != state]
        compared = {"files": digests(folder)} | ({"rewritten": rewritten} if rewritten else {})
        self._append_end(record, compared)
        drop(folder)
        return record

    def _append_end(self, record: TrialRecord, compared: dict[str, Any]) -> None:
        identity = record.to_json()
        of_training = {name: identity.pop(name) for name in OF_TRAINING}
        self._journal.append(Kind.FINISHED, of_training, identity | compared)


def file_states(trial: TrialSpec) -> dict[str, tuple[int, ...]]:
    """Return the state of each file on this machine that a trial's command names, except Python code."""
    if trial.trainable != COMMAND:
        return {}
    states: dict[str, tuple[int, ...]] = {}
    for name, path in named_files(trial.settings["argv"], source_dir(trial.settings)).items():
        with suppress(OSError):  # removed meanwhile
            status = path.stat()
            # Hashes would take long for large files, and a file that was written has another time.
            states[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return states
