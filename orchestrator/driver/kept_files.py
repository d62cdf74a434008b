"""Keeps the files of a finished trial that runs again for as long as its previous row stays valid.

Otherwise that row would get the curve of an attempt that was interrupted. Every step is idempotent, so if a driver is
killed in between, the next one can repair things; until then `Layout.set_aside` has reports read the kept files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from orchestrator.journal.line import Record
from orchestrator.journal.standing import further_attempts
from orchestrator.storage.durable import make_directory, refuse_link, write_whole
from orchestrator.storage.layout import KEPT, Layout
from orchestrator.storage.trial_files import HASHED

FURTHER = "once_more"
"""Folder in a trial's: files of a further attempt that came to nothing."""


def put_aside(folder: Path) -> None:
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


def bring_back(folder: Path) -> None:
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
        (drop if counts else bring_back)(layout.trial(trial_id))
