"""MLflow tracker: one run per trial, in an experiment named after the sweep."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from orchestrator.trackers.tracking import Run

_STATES = {"ok": "FINISHED"}
_LONGEST_PARAM = 6000
_MOST_PARAMS = 100  # MLflow's limit for one call
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Environment variables unless the user sets them: MLflow's default retries block the sweep for ten minutes if the
server does not answer, and MLflow prints two lines at the end of each trial."""


class MLflow:
    """Logs with a separate client, which does not affect a run that the user's program has open."""

    def __init__(self, *, sweep: str, results_dir: Path, uri: str | None = None, experiment: str | None = None) -> None:
        """Create the experiment. `uri` is None for MLFLOW_TRACKING_URI or MLflow's default. Raises MLflow's errors."""
        if uri and (uri.startswith("file:") or "://" not in uri):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 refuses files without it
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._client = MlflowClient(tracking_uri=uri)
        title = experiment or sweep
        existing = self._client.get_experiment_by_name(title)
        self._experiment = existing.experiment_id if existing else self._client.create_experiment(title)
        self._runs: dict[str, str] = {}

    def begin(self, trial_id: str, run: Run) -> None:
        """Create a run with params and tags."""
        created = self._client.create_run(self._experiment, run_name=run.name, tags=dict(run.tags))
        self._runs[trial_id] = created.info.run_id
        params = [Param(_key(key), str(value)[:_LONGEST_PARAM]) for key, value in run.params.items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(created.info.run_id, params=params[first : first + _MOST_PARAMS])

    def log(self, trial_id: str, row: Mapping[str, float], step: int) -> None:
        """Log metrics at an epoch."""
        now_ms = int(time.time() * 1000)
        metrics = [Metric(_key(name), value, now_ms, step) for name, value in row.items()]
        self._client.log_batch(self._runs[trial_id], metrics=metrics)

    def end(self, trial_id: str, figures: Mapping[str, float], status: str, note: str) -> None:
        """Log the trial's figures under `trial/`, its status and note as tags, and end the run."""
        run_id = self._runs.pop(trial_id)
        now_ms = int(time.time() * 1000)
        metrics = [Metric(f"trial/{_key(name)}", value, now_ms, 0) for name, value in figures.items()]
        self._client.log_batch(run_id, metrics=metrics)
        self._client.set_tag(run_id, "status", status)
        if note:
            self._client.set_tag(run_id, "note", note)
        self._client.set_terminated(run_id, _STATES.get(status, "FAILED"))

    def close(self) -> None:
        """Mark the runs of unfinished trials as KILLED."""
        for run_id in self._runs.values():
            self._client.set_terminated(run_id, "KILLED")
        self._runs = {}


def _key(name: str) -> str:
    """Return a valid key: MLflow allows letters, digits, and `_-. /`."""
    return "".join(char if char.isalnum() or char in "_-. /" else "_" for char in name)
