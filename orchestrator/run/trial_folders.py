"""The trials' folders during a run: configs, learning curves, traces and checkpoints, and which of their files count.

While a finished trial runs again, its files are set aside until the further attempt has ended: otherwise its row would
get the curve of an attempt that may be interrupted. Every step is idempotent, so if a driver is killed in between, the
next one repairs the folder. Until then, `Layout.set_aside` makes reports read the files set aside.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.store import files, trial_files
from orchestrator.store.files import make_directory, refuse_link, write_whole
from orchestrator.store.history import History
from orchestrator.store.layout import KEPT, Layout
from orchestrator.store.secrets import Secrets
from orchestrator.store.trial_files import HASHED, hide_in_logs
from sweeps.trial import TrialSpec

FURTHER = "once_more"
"""Folder in a trial's: files of a further attempt that did not count."""

_NO_FILE = re.compile(r"No such file or directory: '([^'/~][^']*)'")


def snapshot(folder: Path) -> None:
    """Copy the trial's files before a further attempt, unless copies exist already."""
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
    """Replace the files of a further attempt that does not count by the copies, if there are any."""
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
    """Delete the copies: the further attempt counts."""
    shutil.rmtree(folder / KEPT, ignore_errors=True)


class TrialFolders:
    """The trial folders of one driver; no secrets get into them."""

    def __init__(self, layout: Layout, secrets: Secrets) -> None:
        self._layout = layout
        self._secrets = secrets
        self._first_rows: set[str] = set()

    def settle(self, history: History) -> None:
        """Keep the files that belong to each row, after further attempts that may have been cut short."""
        for trial_id, trial in history.trials.items():
            if trial.restarted:
                (drop if trial.ended else restore)(self._layout.trial(trial_id))

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

    def copy_curve(self, original: str, trial_id: str) -> None:
        """Copy the learning curve of a trial with the same training, by ids."""
        if (metrics := self._layout.metrics(original)).exists():
            write_whole(self._layout.metrics(trial_id), metrics.read_bytes())

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
    """Return the trial's note, with advice if its command looked for a file in the user's folder.

    A trial's command runs in the trial's folder, while the file is in the driver's current directory.
    """
    found = _NO_FILE.search(note)
    # `Path.exists` raises for names that are too long or folders without permission; a note must not end a sweep.
    if found is None or not os.path.exists(found[1]) or not (folder / "work").is_dir():
        return note
    remedy = f"name {{source_dir}}/{found[1]} in trainable.argv, or set trainable.cwd=source"
    return f"{note}. The command runs in the trial's folder: {remedy}"
