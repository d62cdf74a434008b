"""mode=verify: checks that a results directory is consistent, whatever happened to its drivers.

Changes nothing. Each violation is a line. What a crash may leave (a partial last record, trials without an end, tables
older than the journal) is no violation.

Checks that the files of a results directory are intact and agree with the journal.

Checks the invariants of a journal's records, which hold whatever happened while they were written.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml

from orchestrator.backends.choose import known_nodes
from orchestrator.config.request import Request
from orchestrator.config.setup import Grid
from orchestrator.run import orphans
from orchestrator.run.finish import SweepSummary
from orchestrator.store import files as yaml_text
from orchestrator.store import trial_files
from orchestrator.store.history import Results, ends_under, latest, read_results
from orchestrator.store.journal import Kind, Record, replay, terminal
from orchestrator.store.layout import Layout
from orchestrator.store.lock import owner_alive
from orchestrator.store.trial_files import HASHED, digest
from sweeps.errors import ConfigError
from sweeps.probe import stand_ins
from sweeps.status import Status

GENERATIONS = "trainables.checkpoints:Generations"
"""The class that detects damaged checkpoints."""

REPLAYED = (".csv", ".md", ".parquet", ".tex", ".json")
"""Tables that follow byte by byte from the journal; pictures also depend on the machine's fonts."""


def of_ended_trials(layout: Layout, records: Iterable[Record]) -> Iterator[str]:
    """Files that have changed since their trial ended, except of trials that were started again."""
    latest = {r.value["trial_id"]: r for r in records if r.kind in (Kind.STARTED, Kind.FINISHED)}
    ended = {trial_id: record.value for trial_id, record in latest.items() if record.kind == Kind.FINISHED}
    for trial_id, value in ended.items():
        for name, wanted in value.get("files", {}).items():
            path = layout.trial(trial_id) / name
            if name not in HASHED:
                yield f"{path}: the journal names a file that no trial has"
            elif not path.is_file():
                yield f"{path}: lost since the trial ended"
            elif digest(path) != wanted:
                yield f"{path}: changed since the trial ended, its checksum does not match"


def of_running_trials(layout: Layout, trial_ids: Iterable[str]) -> Iterator[str]:
    """Files of unfinished trials that cannot be parsed; the last line of a learning curve may be incomplete."""
    for trial_id in trial_ids:
        if layout.config(trial_id).is_file():
            try:
                yaml_text.load(layout.config(trial_id).read_bytes())
            except yaml.YAMLError as error:
                yield f"{layout.config(trial_id)}: not YAML ({str(error).splitlines()[0]})"
        if layout.metrics(trial_id).is_file():
            _, damages = trial_files.read(layout.metrics(trial_id))
            whole = (damage for damage in damages if not damage.startswith(trial_files.TORN))
            yield from (f"{layout.metrics(trial_id)}: {damage}" for damage in whole)


def of_checkpoints(layout: Layout) -> Iterator[str]:
    """Damaged checkpoints; a trial continues from the one before."""
    generations = resolve_name(GENERATIONS)
    for folder in sorted(layout.trials.glob("*/checkpoint")):
        for name in generations(folder=folder, rank=0, world_size=1).damaged():
            yield f"{folder / name}: its content does not match the digest in its name; the trial goes on without it"


def without_a_record(layout: Layout, known: Iterable[str]) -> Iterator[str]:
    """Trial folders with files of the driver that the journal does not know: records were lost."""
    names = set(known)
    for folder in sorted(layout.trials.iterdir()) if layout.trials.is_dir() else ():
        if folder.name not in names and any((folder / name).exists() for name in HASHED):
            yield f"{folder}: the journal knows no such trial"


def of_the_tables(request: Request, layout: Layout, results: Results, *, ended: bool) -> Iterator[str]:
    """Tables that differ from those that a replay of the journal makes.

    If the sweep has not `ended`, its tables are older than the journal: they may lack trials, but must not have any
    that the journal does not have.
    """
    if ended:
        yield from _different(layout.tables, _replayed(request, layout, results))
        return
    table = layout.table("trials.csv")
    if table.is_file():
        try:
            rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
            lost = [row["trial_id"] for row in rows if row["trial_id"] not in results.ends]
        except (ValueError, KeyError, csv.Error) as error:
            yield f"{table}: not a table ({error!r}); mode=report makes it again"
            return
        yield from (f"{table}: the journal has no end of trial {trial_id}" for trial_id in lost)


def _replayed(request: Request, layout: Layout, results: Results) -> dict[str, bytes]:
    """The tables by name, made again in a temporary folder with a link to the trials' files."""
    with tempfile.TemporaryDirectory() as elsewhere:
        there = Layout(Path(elsewhere))
        there.tables.mkdir()
        there.trials.symlink_to(layout.trials.absolute())
        quick = replace(request, html=False)
        SweepSummary.of(quick, there, (), results.ends, driver=results.driver, unfinished=results.unfinished)
        return _contents(there.tables)


def _contents(folder: Path) -> dict[str, bytes]:
    files = folder.iterdir() if folder.is_dir() else ()  # a journal that was copied alone has no tables
    return {path.name: path.read_bytes() for path in files if path.suffix in REPLAYED and path.is_file()}


def _different(folder: Path, wanted: Mapping[str, bytes]) -> Iterator[str]:
    found = _contents(folder)
    for name in sorted({*wanted, *found}):
        path = folder / name
        if name not in found:
            yield f"{path}: lost; mode=report makes it again"
        elif name in wanted and found[name] != wanted[name]:
            yield f"{path}: not what a replay of the journal makes; mode=report makes it again"


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
        elif record.kind == Kind.DISTURBED:
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


PATIENCE_S = 10.0
"""How long the processes of a dead driver may take to end."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of the checks."""

    violations: Sequence[str]
    remarks: Sequence[str]
    """Worth knowing, but no violations."""


def show(request: Request, fingerprint: Mapping[str, Any], grid: Grid) -> int:
    """Check and print the findings; returns 1 if there are violations, else 0. Raises ConfigError without results."""
    layout = Layout(request.results_dir)
    if not layout.journal.exists():
        raise ConfigError([f"there are no results in {layout.root}"])
    verdict = verify(request, layout, _planned(request, grid), fingerprint)
    for line in verdict.violations:
        print(line, file=sys.stderr)
    for line in verdict.remarks:
        print(line)
    print(f"{len(verdict.violations) or 'no'} violation{'s' * (len(verdict.violations) != 1)} in {layout.root}")
    return 1 if verdict.violations else 0


def verify(request: Request, layout: Layout, planned: Sequence[str], fingerprint: Mapping[str, Any]) -> Verdict:
    """Check the results in `layout`; `planned` has the ids of the sweep's trials, if known."""
    found = replay(layout.journal)
    reading = read(found.records)
    same = latest(found.records) in (None, fingerprint)
    ends = ends_under(found.records, latest(found.records) or {})
    owner = owner_alive(layout)
    violations = list(reading.violations)
    # The last record may be incomplete if the journal is being written, or its driver died while writing.
    torn = [f"{layout.journal}: {damage}" for damage in found.damages if damage.reason.startswith("torn")]
    corrupt = [f"{layout.journal}: {damage}" for damage in found.damages]
    violations += [damage for damage in corrupt if damage not in torn]
    if reading.ended is not None:
        violations += of_the_plan(planned if same else (), ends, reading.ended)
    unfinished = [trial_id for trial_id, trial in reading.trials.items() if trial.status is None]
    violations += of_ended_trials(layout, found.records)
    violations += of_running_trials(layout, unfinished)
    violations += of_checkpoints(layout)
    probes = [record.value["trial_id"] for record in found.records if record.kind == Kind.PROBED]
    repetitions = [stand_in for trial_id in reading.trials for stand_in in stand_ins(trial_id)]
    violations += without_a_record(layout, [*reading.trials, *probes, *repetitions])
    violations += of_the_tables(request, layout, read_results(layout), ended=reading.ended is not None)
    violations += _orphans(layout)
    missing = [trial_id for trial_id in planned if trial_id not in terminal(found.records)]
    remarks = [
        *torn,
        f"records: {len(found.records)}, trials: {len(reading.trials)}, with an end: {len(ends)}"
        + (f", planned without one: {len(missing)} of {len(planned)}" if same and planned else ""),
    ]
    if owner:
        remarks.append(f"a driver is running: process {owner.pid} on host {owner.host}")
    if not same:
        remarks.append(
            "the journal is of another configuration or other code than this command's: the plan was not checked"
        )
    if layout.quarantine.exists():
        remarks.append(f"{layout.quarantine} holds what was damaged before, and was left out")
    return Verdict(violations=violations, remarks=remarks)


def _planned(request: Request, grid: Grid) -> list[str]:
    """The ids of the planned trials; empty if only a cluster could tell its nodes."""
    nodes = known_nodes(request)
    return [trial.trial_id for trial in grid.trials(nodes)] if nodes else []


def _orphans(layout: Layout) -> Iterator[str]:
    """Processes of dead drivers that have not ended within PATIENCE_S."""
    until = time.monotonic() + PATIENCE_S
    while (left := orphans.left_over(layout.root)) and time.monotonic() < until:
        time.sleep(0.2)
    yield from (f"process {pid} of a dead driver of {layout.root} still runs" for pid in left)
