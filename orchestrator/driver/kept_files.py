"""The files of an ok trial that runs once more because something spoiled its timing: kept until that attempt is ok.

Else the row that stands would have the curve of an attempt that does not (`standing`). Every step can be repeated, so
that a driver that was killed in between leaves what the next one can put right.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from orchestrator.journal.kind import Kind
from orchestrator.journal.line import Record
from orchestrator.storage.durable import make_directory, refuse_link, write_whole
from orchestrator.storage.layout import Layout
from orchestrator.storage.trial_files import HASHED
from sweeps.status import Status

KEPT, FURTHER = "kept", "once_more"
"""Folders of a trial: the files of the row that stands, and those of a further attempt that came to nothing."""


def put_aside(folder: Path) -> None:
    """Before the further attempt: copy the trial's files, unless they are aside already."""
    if (folder / KEPT).exists():
        return
    unfinished = folder / f".{KEPT}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    for name in HASHED:
        if (folder / name).exists():
            write_whole(unfinished / name, (folder / name).read_bytes())
    os.replace(unfinished, folder / KEPT)


def bring_back(folder: Path) -> None:
    """The further attempt is not ok: its files make room for those of the row that stands."""
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
    """The further attempt is ok, and its files are the trial's."""
    shutil.rmtree(folder / KEPT, ignore_errors=True)


def settle(layout: Layout, records: Iterable[Record]) -> None:
    """Put right what a driver left that was ended in the course of a further attempt."""
    replaced: dict[str, bool] = {}
    for record in records:
        if record.kind == Kind.SPOILED:
            replaced |= dict.fromkeys(record.value["trial_ids"], False)
        elif record.kind == Kind.FINISHED and record.value["trial_id"] in replaced:
            replaced[record.value["trial_id"]] = record.value["status"] == Status.OK.value
    for trial_id, by_further in replaced.items():
        (drop if by_further else bring_back)(layout.trial(trial_id))
