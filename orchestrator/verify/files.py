"""Checks that the files of a results directory are intact and agree with the journal."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

import yaml

from orchestrator.config.request import Request
from orchestrator.driver.ending import Ending
from orchestrator.journal.line import Kind, Record
from orchestrator.journal.soundness import Results
from orchestrator.storage import curve, yaml_text
from orchestrator.storage.layout import Layout
from orchestrator.storage.trial_files import HASHED, digest

GENERATIONS = "trainables.checkpoints.generations:Generations"
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
            _, damages = curve.read(layout.metrics(trial_id))
            whole = (damage for damage in damages if not damage.startswith(curve.TORN))
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
        Ending.of(quick, there, (), results.ends, driver=results.driver, unfinished=results.unfinished)
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
