"""The folders of trials during a run: configs, learning curves, traces and checkpoints, and which of the files count.

A trial that is interrupted or retried restarts its learning curve at the first epoch that the new attempt reports; an
attempt that continues from a checkpoint keeps the rows before it.

While a finished trial runs again, its files are set aside until the further attempt has ended: or else its record would
get the curve of an attempt that may be interrupted. Every step is idempotent, so if a driver is killed in between, the
next one repairs the folder. Until then, `ResultsFolder.set_aside` makes reports read the files set aside.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from orchestrator.store import curve_file, files
from orchestrator.store.files import make_directory, refuse_link, remove_folder, write_whole
from orchestrator.store.history import History
from orchestrator.store.record import TrialOutcome
from orchestrator.store.results_folder import CONFIG, KEPT, METRICS, TELEMETRY, TRACE, ResultsFolder
from orchestrator.store.secrets import Secrets
from sweeps.printable import printable_line
from sweeps.trial import TrialSpec

HASHED = (CONFIG, METRICS, TRACE, TELEMETRY)
"""Files written before the trial's end is recorded; checkpoints have digests in their names, other files are logs."""


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each of these files that exists, by name."""
    return {name: file_digest(folder / name) for name in HASHED if (folder / name).is_file()}


def file_digest(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


REJECTED = "once_more"  # folder in a trial's: files of a further attempt that did not count

_NO_FILE = re.compile(r"No such file or directory: '([^'/~][^']*)'")


def snapshot(folder: Path) -> None:
    """Copy the trial's files before a further attempt, unless copies exist already."""
    if (folder / KEPT).exists() or not folder.exists():
        return
    # Under another name until it is complete, so that half a copy is never restored.
    unfinished = folder / f".{KEPT}"
    remove_folder(unfinished)
    unfinished.mkdir(mode=0o700)
    for name in HASHED:
        if (folder / name).is_file():  # a pipe or a device might never end
            write_whole(unfinished / name, (folder / name).read_bytes())
    os.replace(unfinished, folder / KEPT)


def restore(folder: Path) -> None:
    """Replace the files of a further attempt that does not count by the copies, if there are any."""
    kept, rejected = folder / KEPT, folder / REJECTED
    if not kept.exists():
        return
    refuse_link(kept)
    make_directory(rejected)
    for name in HASHED:
        if not (kept / name).exists():
            continue
        if (folder / name).exists():
            os.replace(folder / name, rejected / name)
        # One file after another: if the driver is killed in between, the next one goes on with what is left.
        os.replace(kept / name, folder / name)
    drop(folder)


def drop(folder: Path) -> None:
    """Delete the copies: the further attempt counts."""
    remove_folder(folder / KEPT)


class TrialFolders:
    """The trial folders of one driver; no secrets get into them."""

    def __init__(self, folder: ResultsFolder, secrets: Secrets) -> None:
        self._folder = folder
        self._secrets = secrets
        self._first_rows: set[str] = set()

    def restore_files(self, history: History) -> None:
        """Keep the files that belong to each end, after further attempts that may have been cut short."""
        for trial_id, trial in history.trials.items():
            if trial.restarted:
                (drop if trial.ended else restore)(self._folder.trial(trial_id))

    def prepare(self, trial: TrialSpec, *, continues: bool) -> None:
        """Prepare for an attempt. If it `continues`, keep the previous attempt's checkpoint and curve, if any."""
        metrics = self._folder.metrics(trial.trial_id)
        if not continues:
            self.drop_checkpoint(trial)
        if continues and metrics.is_file():
            self._first_rows.add(trial.trial_id)
        else:
            curve_file.begin(metrics)
        write_whole(self._folder.config(trial.trial_id), files.dump(self._secrets.value(asdict(trial))).encode())

    def extend_curve(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to the learning curve; the first of a continued attempt determine where it resumes."""
        # A checkpoint may be older than the last rows, which then come once more.
        metrics = self._folder.metrics(trial.trial_id)
        if trial.trial_id in self._first_rows:
            self._first_rows.discard(trial.trial_id)
            curve_file.take_back(metrics, rows[0].get("epoch"))
        curve_file.extend(metrics, self._secrets.value(rows))

    def copy_curve(self, original: str, trial_id: str) -> None:
        """Copy the learning curve of a trial with the same training, by ids."""
        if (metrics := self._folder.metrics(original)).is_file():
            write_whole(self._folder.metrics(trial_id), metrics.read_bytes())

    def cleaned(self, trial: TrialSpec, outcome: TrialOutcome) -> TrialOutcome:
        """Return the outcome as it may be written and shown, once nothing writes to the trial's logs any more.

        Secrets are removed from it and from the logs of the trial's ranks and commands.
        """
        folder = self._folder.trial(trial.trial_id)
        self._hide_in_logs(folder)
        # The note may quote the user's program: its control sequences must not reach the journal or a terminal.
        note = printable_line(self._secrets.text(_with_remedy(outcome.note, folder)))
        return replace(outcome, note=note, trace=self._secrets.text(outcome.trace))

    def _hide_in_logs(self, folder: Path) -> None:
        for log in sorted(folder.glob("*.log")):
            # A command may have put a pipe there, which nothing fills.
            if not log.is_file():
                continue
            text = log.read_bytes().decode("utf-8", "surrogateescape")
            clean = self._secrets.text(text)
            if clean != text:
                # Bytes that are no text stay as they are: a log may hold anything that a program printed.
                write_whole(log, clean.encode("utf-8", "surrogateescape"))

    def write_trace(self, trial: TrialSpec, trace: str) -> None:
        """Write why the attempt failed."""
        write_whole(self._folder.trace(trial.trial_id), trace.encode())

    def drop_checkpoint(self, trial: TrialSpec) -> None:
        """Delete the checkpoint, which nothing will continue from."""
        remove_folder(self._folder.checkpoint(trial.trial_id))


def _with_remedy(note: str, folder: Path) -> str:
    """Return the trial's note, with advice if its command looked for a file in the user's folder.

    A trial's command runs in the trial's folder, while the file is in the driver's current directory.
    """
    match = _NO_FILE.search(note)
    # `Path.exists` raises for names that are too long or folders without permission; a note must not end a sweep.
    if match is None or not os.path.exists(match[1]) or not (folder / "work").is_dir():
        return note
    remedy = f"name {{source_dir}}/{match[1]} in trainable.argv, or set trainable.cwd=source"
    return f"{note}. The command runs in the trial's folder: {remedy}"
