"""Weights & Biases tracker: one run per trial, in a project named after the sweep; offline by default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import wandb

from orchestrator.trackers.tracking import Run

_LONGEST_TAG = 64


class WandB:
    """Logs to `<results>/wandb` for `wandb sync`, or online after `wandb login` or with WANDB_API_KEY."""

    def __init__(
        self,
        *,
        sweep: str,
        results_dir: Path,
        mode: str = "offline",
        project: str | None = None,
        entity: str | None = None,
    ) -> None:
        self._mode, self._project, self._entity = mode, project or sweep, entity
        self._dir = results_dir
        self._runs: dict[str, Any] = {}
        wandb.setup()
        # These locate W&B's service process. They are kept because an in-process trial resets the environment.
        self._service = {key: value for key, value in os.environ.items() if key.startswith("WANDB_")}

    def begin(self, trial_id: str, run: Run) -> None:
        """Start a run in addition to the open ones."""
        os.environ.update(self._service)
        about: dict[str, Any] = {
            "mode": self._mode,
            "project": self._project,
            "entity": self._entity,
            "dir": str(self._dir),
            # W&B's random ids would repeat, because an in-process trial seeds the random numbers.
            "id": f"{trial_id}-{uuid4().hex[:8]}",
            "name": run.name,
            "group": run.tags["cell_id"],  # W&B then averages over the seeds
            "tags": [f"{key}:{value}"[:_LONGEST_TAG] for key, value in run.tags.items()],
            "config": dict(run.params),
            "reinit": "create_new",
            # The output belongs to the driver, and the code in its folder must not be uploaded.
            "settings": wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        }
        self._runs[trial_id] = wandb.init(**about)

    def log(self, trial_id: str, row: Mapping[str, float], step: int) -> None:
        """Log the row at an epoch."""
        self._runs[trial_id].log(dict(row), step=step)

    def end(self, trial_id: str, figures: Mapping[str, float], status: str, note: str) -> None:
        """Put the trial's figures into the summary and end the run."""
        run = self._runs.pop(trial_id)
        run.summary.update({**figures, "status": status, "note": note})
        run.finish(exit_code=0 if status == "ok" else 1)

    def close(self) -> None:
        """End the runs of unfinished trials as failed."""
        for run in self._runs.values():
            run.finish(exit_code=1)
        self._runs = {}
