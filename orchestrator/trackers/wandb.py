"""Weights & Biases: a run a trial, in a project named after the sweep; offline unless asked otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import wandb

from orchestrator.trackers.run import Run

_LONGEST_TAG = 64


class WandB:
    """Offline runs lie under `<results>/wandb`, for `wandb sync`; online needs `wandb login` or WANDB_API_KEY."""

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
        # Where W&B finds its own service process; an in-process trial leaves the environment as it was long before.
        self._service = {key: value for key, value in os.environ.items() if key.startswith("WANDB_")}

    def begin(self, trial_id: str, run: Run) -> None:
        """A run beside those that are open."""
        os.environ.update(self._service)
        about: dict[str, Any] = {
            "mode": self._mode,
            "project": self._project,
            "entity": self._entity,
            "dir": str(self._dir),
            # W&B's own would repeat: it is drawn from random numbers that an in-process trial seeds.
            "id": f"{trial_id}-{uuid4().hex[:8]}",
            "name": run.name,
            "group": run.tags["cell_id"],  # W&B then averages over the seeds
            "tags": [f"{key}:{value}"[:_LONGEST_TAG] for key, value in run.tags.items()],
            "config": dict(run.params),
            "reinit": "create_new",
            # The output is the driver's, and the driver's folder is nobody's code to upload.
            "settings": wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        }
        self._runs[trial_id] = wandb.init(**about)

    def log(self, trial_id: str, row: Mapping[str, float], step: int) -> None:
        """History at an epoch."""
        self._runs[trial_id].log(dict(row), step=step)

    def end(self, trial_id: str, figures: Mapping[str, float], status: str, note: str) -> None:
        """The trial's figures in the summary."""
        run = self._runs.pop(trial_id)
        run.summary.update({**figures, "status": status, "note": note})
        run.finish(exit_code=0 if status == "ok" else 1)

    def close(self) -> None:
        """Runs of trials that were given up have failed."""
        for run in self._runs.values():
            run.finish(exit_code=1)
        self._runs = {}
