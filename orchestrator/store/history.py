"""The state of a sweep: one fold over its journal, which answers every question about what has happened so far.

A trial's end is its last valid record, with the timing that counts. A trial with a result keeps it if a rerun was
requested and a budget or lack of room left the trial out. The timing of an end is replaced by that of a repetition,
unless that is disturbed, too; the disturbed timing of a rerun does not replace a valid one. The end's note says so.

The driver may name another trial with the same steps, whose timing an end then has (`Kind.TIMED`): so a disturbed
timing needs no repetition, and a repetition counts for all trials alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.store.grouping_keys import same_speed, same_timing
from orchestrator.store.record import TRAINING_TIMES, Kind, Record, TrialRecord
from orchestrator.store.record_checks import checked_record
from sweeps.axes import flat, is_number, is_whole
from sweeps.probe import probe_id
from sweeps.rank_exit import Cause
from sweeps.status import Status
from sweeps.trial import Purpose, TrialSpec

_SPENDING = (Kind.RETRIED, Kind.CUT_OFF, Kind.FINISHED, Kind.PROBED)
_RESULTS = frozenset(status for status in Status if status.is_result() and status.is_final())
_NO_ANSWER = frozenset((Status.FAILED, Status.INFEASIBLE, Status.SKIPPED))


@dataclass(kw_only=True)
class TrialHistory:
    """The state of one trial after the records so far. Repetitions have no end: they change that of their trial."""

    attempt: int = 0  # the number of the last attempt; 0 if none has started
    running: bool = False  # whether the last attempt has started, and no record tells its end
    measures: str = ""  # the id of the trial that this one, a repetition, times again
    ended: bool = False  # whether a terminal record has followed the last start
    restarted: bool = False  # whether an attempt has started after a terminal record
    failures: list[Cause] = field(default_factory=list)
    """The causes by which attempts failed since the last terminal record."""
    end: TrialRecord | None = None  # the valid end; None if the trial has not ended
    repeated: bool = False  # whether the timing of the last attempt was repeated, with any result
    files: Mapping[str, str] = field(default_factory=dict)  # the SHA-256 of the files of the last attempt, by name
    fingerprint: int = 0  # the number of the fingerprint under which the trial ended
    earlier_s: float = 0.0  # seconds of the attempts since the last terminal record
    unknown_attempts: int = 0  # how many of those attempts are of unknown length: their driver was killed
    result: TrialRecord | None = None
    """The end without notes on how its timing was chosen; None unless the trial has a result."""
    trained: TrialRecord | None = None  # the result with its own timing
    timed_with: str = ""  # the id of another trial whose timing the driver chose for the end; empty if none

    def start(self, attempt: int) -> None:
        """Take the start of an attempt."""
        # A start while one is running: the driver of that one was killed, and nobody noted its length.
        self.unknown_attempts += self.running
        self.restarted |= self.ended
        self.attempt, self.running, self.ended = attempt, True, False

    def fail(self, wall_s: Any, cause: Any) -> None:
        """Take an attempt that did not end the trial; without a `cause` it was cut off."""
        self.running = False
        if isinstance(wall_s, int | float):
            self.earlier_s += wall_s
        else:
            self.unknown_attempts += 1
        if isinstance(cause, str) and cause in set(Cause):
            self.failures.append(Cause(cause))

    def finish(self, record: TrialRecord) -> None:
        """Take the end of the trial, or of a further attempt at it."""
        # A record tells the time of one attempt, and all attempts held the devices.
        record = replace(record, earlier_s=self.earlier_s, unknown_attempts=self.unknown_attempts)
        before, self.repeated, self.timed_with = self.result, False, ""
        # A rerun that a budget or lack of room left out has not run, so that nothing replaces the result.
        if before and record.status in (Status.SKIPPED, Status.INFEASIBLE) and not record.wall_s:
            self.end = _noted(before, f"not run again, although requested: {_end_of(record)}")
        elif record.status not in _RESULTS:
            self.end, self.result = record, None
        else:
            self.trained = self.result = self.end = replace(record, disturbed="")
            # The new result counts, but a disturbed timing must not replace a valid one of the same trial.
            if before and before.status is record.status is Status.OK and record.disturbed:
                self.result = record.timed_by(before)
                self.end = _noted(self.result)

    def repeat_timing(self, repetition: TrialRecord) -> None:
        """Take a repetition of the trial's timing; ignored unless the trial is ok."""
        if self.trained is None or self.result is None or self.result.status is not Status.OK:
            return
        self.repeated = True
        if repetition.status is not Status.OK:
            self.end = _noted(self.result, f"a repetition of its timing ended as {_end_of(repetition)}")
        elif repetition.disturbed:
            self.end = _noted(self.result, f"a repetition of its timing was disturbed: {repetition.disturbed}")
        else:
            self.result = self.trained.timed_by(repetition)
            kept = [name for name in TRAINING_TIMES if name in self.result.metrics and not repetition.has_timing(name)]
            self.end = _noted(self.result, "re-timed alone" + (f", except {', '.join(kept)}" if kept else ""))


def _end_of(record: TrialRecord) -> str:
    return f"{record.status.value}" + (f": {record.note}" if record.note else "")


def _with_speed(end: TrialRecord, timed: TrialRecord) -> TrialRecord:
    """Return the end with the speed of another trial, which is ok; its own times of the training stay."""
    # Only the window may be from another trial: how long this training took depends on its own batch and rule.
    own = {name: end.metrics[name] for name in (*TRAINING_TIMES, "energy_source") if name in end.metrics}
    timed_end = end.timed_by(replace(timed, purpose=Purpose.WINDOW))
    return replace(timed_end, metrics={**timed_end.metrics, **own})


def _noted(end: TrialRecord, *more: str) -> TrialRecord:
    """Return the end with notes on the attempt that its timing is from, and on what did not replace it."""
    earlier = f"the timing is an earlier attempt's: this one's was disturbed ({end.disturbed})" if end.disturbed else ""
    return replace(end, note="; ".join(filter(None, (end.note, earlier, *more))))


class History:
    """The state of a sweep. Takes the records of its journal one by one; records of any form are accepted."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.trials: dict[str, TrialHistory] = {}  # trials and repetitions, by id
        self.fingerprint: Mapping[str, Any] | None = None
        """The config of the last request outside its axes; None if no driver has taken up the sweep."""
        self.driver: Mapping[str, Any] = {}  # the provenance of the last driver that recorded one
        self.hardware: Mapping[str, str] = {}  # the hardware of the most recent trials
        self.missing: int | None = None
        """How many planned trials have no end, if the sweep has ended and its tables are written; else None."""
        self.tables: Mapping[str, str] = {}  # the SHA-256 of each table at the last end of the sweep, by name
        self.planned = 0  # the number of trials that the last driver planned; 0 if it did not record it
        self._open: int | None = None  # the number of them that had no end when it began; None if it did not record it
        self._ended_since: set[str] = set()  # the trials that have ended since then
        self.queued: dict[str, float | None] = {}  # what the last driver has queued, as in the record
        self.ended_since: list[TrialRecord] = []  # how trials and repetitions have ended since it began
        self.spent_gpu_s = 0.0
        """GPU-seconds (or worker-seconds) of all attempts, repetitions and probes, under any config."""
        self._fingerprints: list[Mapping[str, Any] | None] = [None]
        self._current = 0  # the number of the last request's fingerprint
        self.all_ends: dict[str, TrialRecord] = {}  # how each trial ended, under any config, by trial id
        self._probes: list[tuple[int, Mapping[str, Any]]] = []
        self._processes: set[str] = set()  # those that have run a trial
        self._rewritten: tuple[int, frozenset[str]] = (0, frozenset())
        """The number of a fingerprint, and the files that changed during every ok trial under it."""
        for record in records:
            self.take(record)

    def take(self, record: Record) -> None:
        """Take one more record."""
        value = record.value if isinstance(record.value, Mapping) else {}
        trial_id = str(value.get("trial_id"))
        if record.kind in _SPENDING:
            self._spend(value)
        # Any later record means that the tables are older than the journal.
        self.missing = value.get("missing") if record.kind == Kind.ENDED else None
        if record.kind == Kind.ENDED:
            tables = value.get("tables")
            self.tables = tables if isinstance(tables, Mapping) else {}
        if record.kind == Kind.SWEEP:
            self._take_sweep(value)
        elif record.kind == Kind.QUEUED:
            shares_s = value.get("shares_s")
            known = shares_s.items() if isinstance(shares_s, Mapping) else ()
            self.queued |= {trial: float(share_s) if is_number(share_s) else None for trial, share_s in known}
            for left_out in map(str, value.get("left_out", ())):
                self.queued.pop(left_out, None)
        elif record.kind == Kind.PROBED:
            self._probes.append((self._current, value))
        elif record.kind == Kind.STARTED and is_whole(value.get("attempt")):
            trial = self.trials.setdefault(trial_id, TrialHistory(measures=str(value.get("measures", ""))))
            trial.start(value["attempt"])
        elif record.kind == Kind.FINISHED:
            self._take_end(trial_id, record.value)
        elif record.kind == Kind.TIMED:
            self.of(trial_id).timed_with = str(value.get("timed_with"))
        elif record.kind in (Kind.RETRIED, Kind.CUT_OFF):
            self.trials.setdefault(trial_id, TrialHistory()).fail(value.get("wall_s"), value.get("cause"))

    def _take_sweep(self, value: Mapping[str, Any]) -> None:
        fingerprint, driver, hardware = (value.get(key) for key in ("fingerprint", "driver", "hardware"))
        self.fingerprint = fingerprint if isinstance(fingerprint, Mapping) else {}
        self._current = self._number_of(self.fingerprint)
        # A request that was made before takes its number again: ends of its trials count again.
        if self._current < 0:
            self._current = len(self._fingerprints)
            self._fingerprints.append(self.fingerprint)
        self.planned = value["planned"] if is_whole(value.get("planned")) else 0
        self._open = value["open"] if is_whole(value.get("open")) else None
        self._ended_since = set()
        self.queued, self.ended_since = {}, []
        if isinstance(driver, Mapping):
            self.driver = driver
        if isinstance(hardware, Mapping):
            self.hardware = {**self.hardware, **hardware}

    def _take_end(self, trial_id: str, value: Any) -> None:
        record, _ = checked_record(value)
        if record is None:
            return
        trial = self.trials.setdefault(trial_id, TrialHistory())
        record = replace(record, in_kept_processes=self._ran_in_kept_processes(record))
        self.ended_since.append(record)
        if record.measures:
            timed = self.of(record.measures)
            timed.repeat_timing(record)
            self._keep_end(record.measures, timed)
        else:
            trial.finish(record)
            # The journal names the request once, before its trials, and not in each record.
            trial.fingerprint = self._current
            self._ended_since.add(trial_id)
            if record.status is Status.OK and not record.same_as:
                self._take_rewritten(value.get("rewritten"))
            self._keep_end(trial_id, trial)
        files = value.get("files")
        trial.files = files if isinstance(files, Mapping) else {}
        trial.running, trial.ended = False, True
        trial.failures, trial.earlier_s, trial.unknown_attempts = [], 0.0, 0

    def _ran_in_kept_processes(self, record: TrialRecord) -> bool:
        if record.same_as:
            copied = self.of(record.same_as).trained
            return copied is not None and copied.in_kept_processes
        process = record.provenance.get("process")
        known = process in self._processes
        if isinstance(process, str):
            self._processes.add(process)
        return known

    def _take_rewritten(self, names: Any) -> None:
        under, before = self._rewritten
        now = frozenset(map(str, names)) if isinstance(names, list) else frozenset()
        # A file that one trial leaves alone is an input of the others, not an output of all.
        self._rewritten = self._current, now & before if under == self._current else now

    def _keep_end(self, trial_id: str, trial: TrialHistory) -> None:
        if trial.end:
            self.all_ends[trial_id] = trial.end

    def _spend(self, value: Mapping[str, Any]) -> None:
        if value.get("same_as"):  # it has not run
            return
        # Not by status: failed and repeated attempts held the devices as long as any.
        gpus, wall_s = value.get("gpus_held") or value.get("gpus"), value.get("wall_s")
        if isinstance(gpus, int | float) and isinstance(wall_s, int | float):
            self.spent_gpu_s += gpus * wall_s

    def of(self, trial_id: str) -> TrialHistory:
        """Return the state of a trial, which may have no record yet."""
        return self.trials.get(trial_id) or TrialHistory()

    @property
    def ends(self) -> dict[str, TrialRecord]:
        """How each trial ended under the fingerprint of the last request, by trial id."""
        return self.ends_under(self.fingerprint)

    def ends_under(self, fingerprint: Mapping[str, Any] | None) -> dict[str, TrialRecord]:
        """Return how each trial ended that ran under this fingerprint, by trial id. Wider axes do not change it.

        Rows without their own timing have that of `timed_with`.
        """
        # Rows of other configurations stay in the journal, and must not be compared with these.
        number = self._number_of(fingerprint)
        ends = {key: end for key, end in self.all_ends.items() if self.trials[key].fingerprint == number}
        return {key: self._timed(end, ends) for key, end in ends.items()}

    def _timed(self, end: TrialRecord, ends: Mapping[str, TrialRecord]) -> TrialRecord:
        """Return the end with the timing that counts: its own, or that of another trial."""
        source = self._source(end, ends)
        if source is None:
            return end
        # A trial that was started with another one's timing took no steps for it, nor did the one that was copied.
        took_window = not self.all_ends.get(end.same_as, end).timed_with
        return _with_speed(replace(end, timed_with=source.trial_id, took_window=took_window), source)

    def _source(self, end: TrialRecord, ends: Mapping[str, TrialRecord]) -> TrialRecord | None:
        """Return the end whose timing this one has; None if it has its own, or the other trial has none any more."""
        if named := self._named(end, ends):
            return named
        started_with = ends.get(end.timed_with)
        if started_with is None or started_with.status is not Status.OK:
            return None
        return self._named(started_with, ends) or started_with

    def _named(self, end: TrialRecord, ends: Mapping[str, TrialRecord]) -> TrialRecord | None:
        """Return the end that the driver named for the timing of this one, if the two are still alike."""
        named = ends.get(self.trials[end.trial_id].timed_with)
        # It may have been rerun since then, with another result or on another machine.
        if named is None or named.status is not Status.OK or "samples_per_s" not in named.metrics:
            return None
        return named if same_timing(named) == same_timing(end) else None

    @property
    def probes(self) -> dict[str, Mapping[str, Any]]:
        """The last probe of each speed (see `speed`) under the fingerprint of the last request."""
        return {str(value.get("speed")): value for under, value in self._probes if under == self._current}

    @property
    def folders(self) -> set[str]:
        """The names of the folders that trials, repetitions and probes may have."""
        # A probe that was interrupted left a folder, but no record: any trial may have one.
        probes = {str(value.get("trial_id")) for _, value in self._probes}
        return {*self.trials, *probes, *map(probe_id, self.trials)}

    @property
    def outputs(self) -> dict[str, str]:
        """The files named by the command that every ok trial wrote, with the hashes that identify the trials.

        The hash is from before the first trial; empty if there was no such file. A file that a user edits while a
        sweep runs does not change during every trial.
        """
        source = (self.fingerprint or {}).get("source")
        files = source.get("files") if isinstance(source, Mapping) else None
        known = files if isinstance(files, Mapping) else {}
        return {name: str(known.get(name, "")) for name in sorted(self._rewritten[1])}

    @property
    def repeated(self) -> set[str]:
        """The trials whose timing was repeated since they last ended."""
        return {trial_id for trial_id, trial in self.trials.items() if trial.repeated}

    @property
    def set_aside(self) -> frozenset[str]:
        """The trials in the middle of a further attempt, as in `ResultsFolder.set_aside`."""
        return frozenset(key for key, trial in self.trials.items() if trial.restarted and not trial.ended)

    @property
    def not_run(self) -> int:
        """The number of planned trials without an end, as far as the last driver recorded it."""
        return max(0, (self._open or 0) - len(self._ended_since)) if self.missing is None else self.missing

    @property
    def is_unfinished(self) -> bool:
        """True if the last driver left planned trials without an end, or still runs.

        A driver that fails while it writes the tables has not noted what is missing. Then the trials are counted.
        """
        if self.fingerprint is None or self.missing is not None:
            return bool(self.missing)
        runs = any(trial.running for trial in self.trials.values())
        return runs or self._open is None or len(self._ended_since) < self._open

    @property
    def has_answers(self) -> bool:
        """True if any trial's end says something about the training, so that a changed config must not be mixed in."""
        return any(end.status not in _NO_ANSWER for end in self.all_ends.values())

    def _number_of(self, fingerprint: Mapping[str, Any] | None) -> int:
        """Return the number of the recorded fingerprint of the same trials; -1 if there is none."""
        for number, known in enumerate(self._fingerprints):
            if known == fingerprint:
                return number
            if known is not None and fingerprint is not None and not changes_between(known, fingerprint):
                return number
        return -1

    def changes(self, fingerprint: Mapping[str, Any]) -> list[str]:
        """Return the differences from the fingerprint of the last request; none in a new journal."""
        return changes_between(self.fingerprint, fingerprint) if self.fingerprint is not None else []


def changes_between(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each change, such as `config.budget.epochs: 10 → 20`, with all dotted keys that changed alike.

    Many names in the config may lead to one package, whose hash is then that of each. A key that only one version of
    the project has changes nothing while it is at its default: `defaults` lists such keys of a fingerprint.
    """
    old, new = dict(flat(before)), dict(flat(now))
    at_default = {"defaults", *before.get("defaults", ()), *now.get("defaults", ())}
    changes: dict[str, list[str]] = {}
    for key in {**old, **new}:
        # A journal of an earlier version lacks keys that exist by now, and trained with their default.
        is_new_at_default = key in at_default and not (key in old and key in new)
        if old.get(key) != new.get(key) and key != "defaults" and not is_new_at_default:
            changes.setdefault(f"{_shown(old, key)} → {_shown(new, key)}", []).append(key)
    return [f"{', '.join(keys)}: {change}" for change, keys in changes.items()]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "(absent)"


class Durations:
    """Wall times of ok trials, by cell and by everything that determines a trial's speed."""

    def __init__(
        self, records: Iterable[TrialRecord] = (), forecast_s: Callable[[TrialSpec], float | None] = lambda trial: None
    ) -> None:
        """`forecast_s` returns the seconds of trials of which no record tells."""
        self._forecast_s = forecast_s
        self._seconds: dict[str, list[float]] = {}
        self._medians: dict[str, float] = {}
        for record in records:
            if record.status is Status.OK:
                self.add(record.cell_id, record.axes, record.wall_s)

    def add(self, cell_id: str, axes: Mapping[str, Any], wall_s: float) -> None:
        """Add a trial that was ok after `wall_s` seconds."""
        for key in (cell_id, same_speed(axes)):
            self._seconds.setdefault(key, []).append(wall_s)
            self._medians.pop(key, None)

    def expected_s(self, trial: TrialSpec) -> float | None:
        """Median of its cell, else of trials that differ only in seed and rate, else the forecast; None if unknown."""
        return self._median(trial.cell_id) or self._median(same_speed(trial.axes)) or self._forecast_s(trial)

    def _median(self, key: str) -> float | None:
        if key not in self._medians and key in self._seconds:
            self._medians[key] = statistics.median(self._seconds[key])
        return self._medians.get(key)
