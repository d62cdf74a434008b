"""`mode=verify`: checks that a journal's records are consistent, and that the files of its directory agree with it.

Changes nothing. Each violation is a line. What a crash may leave (a partial last record, trials without an end, tables
older than the journal) is no violation.
"""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import yaml

from orchestrator.backends.backend_choice import known_nodes
from orchestrator.config.checked_sweep import CheckedSweep
from orchestrator.run import leftover_processes
from orchestrator.store import curve_file, files
from orchestrator.store.history import History
from orchestrator.store.journal import replay
from orchestrator.store.lock import driver_of
from orchestrator.store.record import Kind, Record
from orchestrator.store.results import history_in
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.store.trial_files import HASHED, file_digest
from orchestrator.text.numbers import counted
from sweeps.printable import printable
from sweeps.status import Status

_TABLES = (".csv", ".md", ".parquet", ".json")
_END_OF_TABLES = {".csv": b"\n", ".md": b"\n", ".parquet": b"PAR1", ".json": b"}\n"}  # how whole tables end


GENERATIONS = "trainables.checkpoints:Generations"  # the class that detects damaged checkpoints


def of_ended_trials(folder: ResultsFolder, history: History) -> Iterator[str]:
    """Yield files that have changed since their trial ended, except of trials that were started again."""
    for trial_id, trial in history.trials.items():
        for name, wanted in trial.files.items() if trial.ended else ():
            path = folder.trial(trial_id) / name
            if name not in HASHED:
                yield f"{path}: the journal names a file that no trial has"
            elif not path.is_file():
                yield f"{path}: lost since the trial ended"
            elif file_digest(path) != wanted:
                yield f"{path}: changed since the trial ended, its checksum does not match"


def of_running_trials(folder: ResultsFolder, trial_ids: Iterable[str]) -> Iterator[str]:
    """Yield files of unfinished trials that cannot be parsed; the last line of a learning curve may be incomplete."""
    for trial_id in trial_ids:
        if folder.config(trial_id).is_file():
            try:
                files.load(folder.config(trial_id).read_bytes())
            except yaml.YAMLError as error:
                yield f"{folder.config(trial_id)}: not YAML ({str(error).splitlines()[0]})"
        if folder.metrics(trial_id).is_file():
            _, damages = curve_file.read(folder.metrics(trial_id))
            whole = (damage for damage in damages if not damage.startswith(curve_file.TORN))
            yield from (f"{folder.metrics(trial_id)}: {damage}" for damage in whole)


def of_checkpoints(folder: ResultsFolder) -> Iterator[str]:
    """Yield damaged checkpoints; a trial continues from the one before."""
    generations = resolve_name(GENERATIONS)
    for path in sorted([*folder.trials.glob("*/checkpoint"), *folder.trials.glob("*/branch-*")]):
        for name in generations(folder=path, rank=0, world_size=1).damaged():
            yield f"{path / name}: its content does not match the digest in its name; the trial goes on without it"


def without_a_record(folder: ResultsFolder, known: Iterable[str]) -> Iterator[str]:
    """Yield trial folders with files of the driver that the journal does not know: records were lost."""
    names = set(known)
    for trial in sorted(folder.trials.iterdir()) if folder.trials.is_dir() else ():
        if trial.name not in names and any((trial / name).exists() for name in HASHED):
            yield f"{trial}: the journal knows no such trial"


def of_the_tables(folder: ResultsFolder, history: History) -> Iterator[str]:
    """Yield tables that do not follow from the journal.

    The record of the sweep's end has the digests of its tables. Before that end, the tables are older than the journal:
    they may lack trials, but must not have any that the journal does not have.
    """
    again = f"mode=report results_dir={folder.root} makes it again"
    if history.missing is not None:
        present = table_digests(folder)
        for name, wanted in history.tables.items():
            if present.get(name) != wanted:
                change = "changed" if name in present else "lost"
                yield f"{folder.table(name)}: {change} since the sweep ended; {again}"
        return
    # A full disk leaves tables without their end.
    for path in sorted(folder.tables.iterdir()) if folder.tables.is_dir() else ():
        end = _END_OF_TABLES.get(path.suffix)
        if end is not None and path.is_file() and not path.read_bytes().endswith(end):
            yield f"{path}: its end is missing; {again}"
    table = folder.table("trials.csv")
    if not table.is_file():
        return
    try:
        rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
        unknown = [row["trial_id"] for row in rows if row["trial_id"] not in history.ends]
    except (ValueError, KeyError, csv.Error) as error:
        yield f"{table}: not a table ({error!r}); {again}"
        return
    yield from (f"{table}: the journal has no end of trial {trial_id}" for trial_id in unknown)


def table_digests(folder: ResultsFolder) -> dict[str, str]:
    """Return the SHA-256 of each table by name."""
    # Plots and the page are no tables: they depend on the fonts of a machine.
    paths = sorted(folder.tables.iterdir()) if folder.tables.is_dir() else []
    tables = (path for path in paths if path.suffix in _TABLES and path.is_file())
    return {path.name: file_digest(path) for path in tables}


class JournalCheck:
    """The invariants of a journal, checked record by record, and the state of the sweep that it records."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.history = History()
        self.violations: list[str] = []
        self.ended: dict[str, Status] = {}  # how each trial ended that must not run again, unless the user requests it
        for number, record in enumerate(records, start=1):
            try:
                self._check(f"journal record {number}", record)
            except (KeyError, TypeError, ValueError) as error:
                what = f"a {record.kind} record that makes no sense ({error!r})"
                self.violations.append(f"journal record {number}: {what}")
            self.history.take(record)

    def _check(self, where: str, record: Record) -> None:
        """Check one record against the state before it; unknown kinds are ignored."""
        if record.kind == Kind.SWEEP:
            rerun = record.value.get("rerun", "none")  # a word, or the ids of the trials that may run again
            word, named = (rerun, ()) if isinstance(rerun, str) else ("none", rerun)
            self.ended = {key: end for key, end in self.ended.items() if end.stands(word) and key not in named}
        elif record.kind == Kind.ENDED:
            record.value["missing"]  # which must be there
        elif record.kind in (Kind.STARTED, Kind.RETRIED, Kind.CUT_OFF, Kind.FINISHED):
            trial_id, attempt = record.value["trial_id"], record.value["attempt"]
            where = f"{where}: trial {trial_id}"
            ended_as = self.ended.pop(trial_id, None)
            if ended_as is not None:
                what = "was started again" if record.kind == Kind.STARTED else "has a second terminal record"
                self.violations.append(f"{where} {what} after it had ended as {ended_as}, without a request")
            before = self.history.of(trial_id)
            if record.kind == Kind.STARTED and attempt != before.attempt + 1:
                self.violations.append(f"{where}: attempt {attempt} follows attempt {before.attempt}")
            if record.kind == Kind.STARTED:
                return
            status = Status(record.value["status"]) if record.kind == Kind.FINISHED else None
            never_ran = status in (Status.INFEASIBLE, Status.SKIPPED)
            is_running = before.running and attempt == before.attempt
            if ended_as is None and not never_ran and not is_running:
                self.violations.append(f"{where}: attempt {attempt} ended as {record.kind}, and had not been started")
            # A trial that was skipped by a rule of the sweep, or did not fit, may run later; so may a repetition.
            may_run = record.value.get("skipped_by") or record.value.get("measures")
            if status is not None and status.is_final() and not may_run:
                self.ended[trial_id] = status


def of_the_plan(planned: Sequence[str], ended: Iterable[str], missing: int, recorded: int) -> Iterator[str]:
    """Yield a violation if a sweep has ended without `missing` trials, but planned trials have no end.

    `recorded` is the number of trials that its driver planned: those of a wider grid than that have not run yet.
    """
    ends = set(ended)
    without = [trial_id for trial_id in planned if trial_id not in ends]
    if not missing and len(without) > max(0, len(planned) - (recorded or len(planned))):
        yield f"the sweep has ended, and {len(without)} planned trials have no end: {', '.join(without[:5])}"


PATIENCE_S = 10.0  # how long the processes of a dead driver may take to end


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of the checks."""

    violations: Sequence[str]
    remarks: Sequence[str]  # worth knowing, but no violations


def show(checked: CheckedSweep) -> int:
    """Check and print the findings; returns 1 if there are violations, else 0. Raises ConfigError without results."""
    request = checked.request
    folder = ResultsFolder(request.results_dir)
    sweep = checked.with_outputs(history_in(folder).outputs)
    # Checking must not start a cluster, which costs minutes and perhaps money.
    nodes = known_nodes(request)  # none if only a cluster could tell
    # A folder alone does not say which trials its sweep has.
    has_grid = checked.composition.sweep or any(request.axes.values())
    planned = [trial.trial_id for trial in sweep.trials(nodes)] if nodes and has_grid else []
    verdict = verify(folder, planned, sweep.fingerprint())
    for line in verdict.violations:
        print(printable(line), file=sys.stderr)
    for line in verdict.remarks:
        print(printable(line))
    count = counted(len(verdict.violations), "violation", "violations") or "no violations"
    print(f"{count} in {folder.root}")
    return 1 if verdict.violations else 0


def verify(folder: ResultsFolder, planned: Sequence[str], fingerprint: Mapping[str, Any]) -> Verification:
    """Check the results in `folder`; `planned` has the ids of the sweep's trials, if known."""
    journal = replay(folder.journal)
    reading = JournalCheck(journal.records)
    history = reading.history
    # The plan of another config says nothing about this journal's trials.
    same = not history.changes(fingerprint)
    driver = driver_of(folder)
    # The last record may be incomplete if the journal is being written, or its driver died while writing.
    damages = [f"{folder.journal}: {damage}" for damage in journal.damages]
    torn = [text for text, damage in zip(damages, journal.damages, strict=True) if damage.reason.startswith("torn")]
    unusable = [f"{folder.journal}: {record}" for record in journal.unusable]
    violations = [*reading.violations, *(damage for damage in damages if damage not in torn), *unusable]
    if same and history.missing is not None:
        violations += of_the_plan(planned, history.ends, history.missing, history.planned)
    violations += of_ended_trials(folder, history)
    may_run = [trial_id for trial_id in history.trials if trial_id not in reading.ended]
    violations += of_running_trials(folder, may_run)
    violations += of_checkpoints(folder)
    violations += without_a_record(folder, history.folders)
    violations += of_the_tables(folder, history)
    violations += _orphans(folder)
    missing = [trial_id for trial_id in planned if trial_id not in history.all_ends]
    trials = sum(not trial.measures for trial in history.trials.values())
    remarks = [
        *torn,
        f"records: {len(journal.records)}, trials: {trials}, with an end: {len(history.ends)}"
        + (f", planned without one: {len(missing)} of {len(planned)}" if same and planned else ""),
    ]
    if driver:
        remarks.append(f"a driver is running: {driver}")
    if not same:
        remarks.append(
            "the journal is of another configuration or other code than this command's: the plan was not checked"
        )
    if folder.quarantine.exists():
        remarks.append(f"{folder.quarantine} holds what was damaged before, and was left out")
    return Verification(violations=violations, remarks=remarks)


def _orphans(folder: ResultsFolder) -> Iterator[str]:
    """Yield processes of dead drivers that have not ended within PATIENCE_S."""
    # Ranks notice the death of their driver only when they next look.
    until = time.monotonic() + PATIENCE_S
    while (left := leftover_processes.left_over(folder.root)) and time.monotonic() < until:
        time.sleep(0.2)
    yield from (f"process {pid} of a dead driver of {folder.root} still runs" for pid in left)
