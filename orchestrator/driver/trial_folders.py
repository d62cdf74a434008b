"""Trial folders during a run (config, learning curve, trace, checkpoint), and which files are kept."""

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
            curve.begin(metrics)
        write_whole(self._layout.config(trial.trial_id), yaml_text.dump(self._secrets.value(asdict(trial))).encode())

    def extend_curve(self, trial: TrialSpec, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to the learning curve; the first of a continued attempt determine where it resumes."""
        metrics = self._layout.metrics(trial.trial_id)
        if trial.trial_id in self._first_rows:
            self._first_rows.discard(trial.trial_id)
            curve.take_back(metrics, rows[0].get("epoch"))
        curve.extend(metrics, self._secrets.value(rows))

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
