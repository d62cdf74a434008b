"""The folders of trials while they run: config, learning curve, trace, checkpoint; what of them stays for whom."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.storage import curve, yaml_text
from orchestrator.storage.durable import write_whole
from orchestrator.storage.layout import Layout
from orchestrator.storage.secrets import Secrets
from orchestrator.storage.trial_files import hide_in_logs
from sweeps.trial import TrialSpec

_NO_FILE = re.compile(r"No such file or directory: '([^'/~][^']*)'")


class TrialFolders:
    """Those of one driver; nothing secret gets into them."""

    def __init__(self, layout: Layout, secrets: Secrets) -> None:
        self._layout = layout
        self._secrets = secrets
        self._first_rows: set[str] = set()

    def prepare(self, trial: TrialSpec, *, continues: bool) -> None:
        """For an attempt. One that `continues` finds the checkpoint and the curve of the attempt before, if any."""
        metrics = self._layout.metrics(trial.trial_id)
        if not continues:
            self.drop_checkpoint(trial)
        if continues and metrics.exists():
            self._first_rows.add(trial.trial_id)
        else:
            curve.begin(metrics)
        write_whole(self._layout.config(trial.trial_id), yaml_text.dump(self._secrets.value(asdict(trial))).encode())

    def extend_curve(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to the learning curve; the first of an attempt that continues say from where on."""
        metrics = self._layout.metrics(trial.trial_id)
        if trial.trial_id in self._first_rows:
            self._first_rows.discard(trial.trial_id)
            curve.take_back(metrics, rows[0].get("epoch"))
        curve.extend(metrics, self._secrets.value(rows))

    def hide_in_logs(self, trial: TrialSpec) -> None:
        """Take secrets out of what its ranks have printed."""
        hide_in_logs(self._layout.trial(trial.trial_id), self._secrets)

    def write_trace(self, trial: TrialSpec, trace: str) -> None:
        """Why its attempt failed."""
        write_whole(self._layout.trace(trial.trial_id), trace.encode())

    def drop_checkpoint(self, trial: TrialSpec) -> None:
        """Nothing goes on from it."""
        shutil.rmtree(self._layout.checkpoint(trial.trial_id), ignore_errors=True)


def with_remedy(note: str, folder: Path) -> str:
    """The note of a trial with this folder; of a command that looks for a file where it was started by hand, told how.

    A trial's command runs in a folder of its own, and the file lies where the driver stands.
    """
    found = _NO_FILE.search(note)
    # `Path.exists` would raise for a name that is too long, or in a folder that is closed: no note may end a sweep.
    if found is None or not os.path.exists(found[1]) or not (folder / "work").is_dir():
        return note
    remedy = f"name {{source_dir}}/{found[1]} in trainable.argv, or say trainable.cwd=source"
    return f"{note}. The command runs in a folder of its own: {remedy}"
