"""One driver's session with a sweep: every event goes into the journal first, then to the screen.

Keeps the files of a finished trial that runs again for as long as its previous row stays valid.

Otherwise that row would get the curve of an attempt that was interrupted. Every step is idempotent, so if a driver is
killed in between, the next one can repair things; until then `Layout.set_aside` has reports read the kept files.

Attempts at trials: how many there were, and which run.

Trial folders during a run (config, learning curve, trace, checkpoint), and which files are kept.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.plan.plan import MEASURED, size
from orchestrator.run.display import Display
from orchestrator.run.interrupt import Interrupt
from orchestrator.schedule.queue import Retries
from orchestrator.store import files, trial_files
from orchestrator.store.failpoints import Moment, reached
from orchestrator.store.files import make_directory, refuse_link, write_whole
from orchestrator.store.history import speed
from orchestrator.store.journal import EffectiveRecords, Journal, Kind, Record, further_attempts
from orchestrator.store.layout import KEPT, Layout
from orchestrator.store.record import Cause, TrialOutcome, TrialRecord, timing_of
from orchestrator.store.secrets import NO_SECRETS, Secrets
from orchestrator.store.trial_files import HASHED, digests, hide_in_logs
from orchestrator.telemetry.timing_gate import disturbed_beside, why_not
from sweeps.errors import ConfigError
from sweeps.status import Status
from sweeps.trial import TrialSpec

FURTHER = "once_more"
"""Folder in a trial's: files of a further attempt that came to nothing."""


def snapshot(folder: Path) -> None:
    """Before a further attempt: copy the trial's files, unless copies exist already."""
    if (folder / KEPT).exists() or not folder.exists():
        return
    unfinished = folder / f".{KEPT}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    for name in HASHED:
        if (folder / name).exists():
            write_whole(unfinished / name, (folder / name).read_bytes())
    os.replace(unfinished, folder / KEPT)


def restore(folder: Path) -> None:
    """The further attempt does not count: replace its files by those of the valid row."""
    kept, further = folder / KEPT, folder / FURTHER
    if not kept.exists():
        return
    refuse_link(kept)
    make_directory(further)
    for name in HASHED:
        if not (kept / name).exists():
            continue
        if (folder / name).exists():
            os.replace(folder / name, further / name)
        os.replace(kept / name, folder / name)
    drop(folder)


def drop(folder: Path) -> None:
    """The further attempt counts: drop the copies, its files are now the trial's."""
    shutil.rmtree(folder / KEPT, ignore_errors=True)


def settle(layout: Layout, records: Iterable[Record]) -> None:
    """Clean up after a driver that was killed during a further attempt."""
    for trial_id, counts in further_attempts(records).items():
        (drop if counts else restore)(layout.trial(trial_id))


class Attempts:
    """Attempts made by this driver and, according to the journal, by earlier ones."""

    def __init__(self, journal: Journal) -> None:
        self._numbers = journal.attempts()
        self._running: dict[str, tuple[TrialSpec, float]] = {}
        """Running attempts: by trial, the start on a monotonic clock."""

    def begun(self, trial: TrialSpec) -> int:
        """Note that an attempt has begun; return its number, counted from 1."""
        self._numbers[trial.trial_id] = self.number(trial) + 1
        self._running[trial.trial_id] = trial, time.monotonic()
        return self.number(trial)

    def number(self, trial: TrialSpec) -> int:
        """The number of the last attempt; 0 where none has begun."""
        return self._numbers.get(trial.trial_id, 0)

    def ended(self, trial: TrialSpec) -> None:
        """Note that the running attempt has ended."""
        self._running.pop(trial.trial_id, None)

    def retried(self, trial: TrialSpec, outcome: TrialOutcome) -> dict[str, Any]:
        """The journal record of an attempt that will be followed by another."""
        value = {"cause": outcome.cause.value, "note": outcome.note, "wall_s": outcome.wall_s}
        return self._described(trial) | value

    def cut_off(self) -> list[dict[str, Any]]:
        """Journal records of attempts that have begun and whose end nobody will report."""
        now_s, running = time.monotonic(), list(self._running.values())
        self._running.clear()
        return [self._described(trial) | {"wall_s": now_s - began_s} for trial, began_s in running]

    def _described(self, trial: TrialSpec) -> dict[str, Any]:
        return {"trial_id": trial.trial_id, "attempt": self.number(trial), "gpus_held": trial.gpus_held}


def failed_before(records: Iterable[Record]) -> dict[str, list[Cause]]:
    """Return by trial the causes of the attempts that failed since its last terminal record."""
    found: dict[str, list[Cause]] = {}
    for record in records:
        if record.kind == Kind.RETRIED:
            found.setdefault(record.value["trial_id"], []).append(Cause(record.value["cause"]))
        elif record.kind == Kind.FINISHED:
            found.pop(record.value["trial_id"], None)
    return found


_NO_FILE = re.compile(r"No such file or directory: '([^'/~][^']*)'")


class TrialFolders:
    """The trial folders of one driver; no secrets get into them."""

    def __init__(self, layout: Layout, secrets: Secrets) -> None:
        self._layout = layout
        self._secrets = secrets
        self._first_rows: set[str] = set()

    def prepare(self, trial: TrialSpec, *, continues: bool) -> None:
        """Prepare for an attempt. If it `continues`, keep the previous attempt's checkpoint and curve, if any."""
        metrics = self._layout.metrics(trial.trial_id)
        if not continues:
            self.drop_checkpoint(trial)
        if continues and metrics.exists():
            self._first_rows.add(trial.trial_id)
        else:
            trial_files.begin(metrics)
        write_whole(self._layout.config(trial.trial_id), files.dump(self._secrets.value(asdict(trial))).encode())

    def extend_curve(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to the learning curve; the first of a continued attempt determine where it resumes."""
        metrics = self._layout.metrics(trial.trial_id)
        if trial.trial_id in self._first_rows:
            self._first_rows.discard(trial.trial_id)
            trial_files.take_back(metrics, rows[0].get("epoch"))
        trial_files.extend(metrics, self._secrets.value(rows))

    def hide_in_logs(self, trial: TrialSpec) -> None:
        """Remove secrets from the output of its ranks."""
        hide_in_logs(self._layout.trial(trial.trial_id), self._secrets)

    def write_trace(self, trial: TrialSpec, trace: str) -> None:
        """Write why the attempt failed."""
        write_whole(self._layout.trace(trial.trial_id), trace.encode())

    def drop_checkpoint(self, trial: TrialSpec) -> None:
        """Delete the checkpoint, which nothing will continue from."""
        shutil.rmtree(self._layout.checkpoint(trial.trial_id), ignore_errors=True)


def with_remedy(note: str, folder: Path) -> str:
    """The trial's note; if its command looked for a file in the user's folder, with advice.

    A trial's command runs in a folder of its own, while the file is in the driver's current directory.
    """
    found = _NO_FILE.search(note)
    # `Path.exists` raises for names that are too long or folders without permission; a note must not end a sweep.
    if found is None or not os.path.exists(found[1]) or not (folder / "work").is_dir():
        return note
    remedy = f"name {{source_dir}}/{found[1]} in trainable.argv, or set trainable.cwd=source"
    return f"{note}. The command runs in a folder of its own: {remedy}"


class Session:
    """Listens to the trials of a back end."""

    def __init__(
        self,
        layout: Layout,
        journal: Journal,
        display: Display,
        interrupt: Interrupt,
        *,
        retries: Retries | None = None,
        secrets: Secrets = NO_SECRETS,
    ) -> None:
        """`retries` belongs to the trial queue, which counts the attempts; the session asks it what follows."""
        self._secrets = secrets
        self._layout = layout
        self._folders = TrialFolders(layout, secrets)
        self._journal = journal
        self._display = display
        self._interrupt = interrupt
        self._attempts = Attempts(journal)
        self._retries = retries or Retries()
        self._effective_records = EffectiveRecords()
        for record in journal.records:
            self._effective_records.take(record)
        ends = self._rows = journal.terminal()
        self._ended = set(ends)
        self._has_result = any(end.status is Status.OK for end in ends.values())
        self._left_out = {key: (end.status, end.note) for key, end in ends.items() if end.skipped_by}
        self.settle()

    def settle(self) -> None:
        """Restore the files of the valid row for trials whose further attempt was cut short."""
        settle(self._layout, self._journal.records)

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
            snapshot(self._layout.trial(trial.trial_id))
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

    def finished(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """Journal the end of the attempt: once this returns, a trial that has ended is never run again.

        Raises OSError if the trial met a full disk: it has not failed but waits for space. Raises ConfigError if it
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
        self._attempts.ended(trial)
        if self._retries.allows(trial, outcome):
            self._journal.append(Kind.RETRIED, self._attempts.retried(trial, outcome))
            self._display.retried(trial, outcome)
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
        self.left_out(
            (trial, TrialOutcome(status=Status.INFEASIBLE, note=reason, wall_s=0.0)) for trial, reason in trials
        )

    def left_out(self, ends: Iterable[tuple[TrialSpec, TrialOutcome]]) -> None:
        """Journal why these trials were not started, unless the journal says so already; probes have no end."""
        new = [(trial, end) for trial, end in ends if self._left_out.get(trial.trial_id) != (end.status, end.note)]
        for trial, end in new:
            if trial.probes:
                continue
            restore(self._layout.trial(trial.trial_id))
            self._end(trial, end)
        self._display.skipped(new)

    def found_disturbed(self, trials: Sequence[TrialSpec]) -> None:
        """Something disturbed timings, and these trials repeat them, alone."""
        self._display.repeated(trials)

    def _no_trial_can(self, trial: TrialSpec, outcome: TrialOutcome) -> ConfigError:
        """The error to raise if the first trial finds the request wrong: it has not failed, but waits for another."""
        self._folders.write_trace(trial, outcome.trace)
        return ConfigError([f"{outcome.note} (see {self._layout.trace(trial.trial_id)})"])

    def _probed(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
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

    def _timed_again(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        """Journal the timing, and whether it counts. One that was lost with its node is taken again."""
        row = self._rows[trial.probes]
        timed = {
            **{"trial_id": trial.trial_id, "times": trial.probes, "repeats": trial.repeats, "wall_s": outcome.wall_s},
            **{"status": outcome.status.value, "note": outcome.note, "disturbed": ""},
            **{"gpus": trial.gpus, "gpus_held": trial.gpus_held, "timing": trial.timing},
            **{"metrics": dict(outcome.metrics), "provenance": dict(outcome.provenance)},
        }
        if outcome.status is Status.OK:
            timed |= timing_of(timed)
            timed["disturbed"] = why_not(timed, row, self._rows.values())
        again = self._retries.allows(trial, outcome)
        self._write(Kind.TIMED, self._secrets.value(timed | {"again": again}))
        if again:
            self._display.retried(trial, outcome)
        else:
            self._folders.drop_checkpoint(trial)
            self._display.finished(trial, outcome)

    def _end(self, trial: TrialSpec, outcome: TrialOutcome) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        attempt = self._attempts.number(trial)
        record = TrialRecord.of(trial, outcome, attempt=attempt, finished_at=now)
        if earlier := self._rows.get(trial.trial_id):
            record = replace(record, disturbed=disturbed_beside(record, earlier, self._rows.values()))
        folder = self._layout.trial(trial.trial_id)
        self._write(Kind.FINISHED, self._secrets.value(record.to_json()) | {"files": digests(folder)})
        drop(folder)
        self._ended.add(trial.trial_id)

    def _write(self, kind: Kind, value: Mapping[str, Any]) -> None:
        """Journal what may change a trial's row, and keep the row as it then is."""
        self._journal.append(kind, value)
        taken = self._effective_records.take(Record(kind=kind, value=value))
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
