"""Passes Tune's events on to the listener and to Ray's metrics."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.tune import Callback
from ray.tune.experiment import Trial

from orchestrator.backends.guarded_listener import GuardedListener
from orchestrator.backends.on_ray.attempt import Attempt
from orchestrator.backends.on_ray.metrics import Metrics
from orchestrator.backends.on_ray.rank_end import in_short
from orchestrator.backends.quarantine import Quarantine
from orchestrator.journal.outcome import Cause, Outcome
from sweeps.status import Status

_UNHEARD = "The actor never ran"
"""Ray's message for every actor if the cluster's head cannot connect to the driver."""

SILENT_S = 120.0
"""A supervisor reports twice a second; one that is silent for this long is killed."""


class Relay(Callback):  # type: ignore[misc]
    """A Tune callback that informs the listener and Ray's metrics."""

    def __init__(self, guarded: GuardedListener, quarantine: Quarantine) -> None:
        self._guarded = guarded
        self._quarantine = quarantine
        self._started: dict[str, float] = {}
        self._heard: dict[str, float] = {}

    def setup(self, *given: Any, **info: Any) -> None:
        """Create the metrics, which Tune could not pickle."""
        self._metrics = Metrics()

    def on_trial_start(self, iteration: int, trials: list[Attempt], trial: Attempt, **info: Any) -> None:
        """The trial's processes are ready, and it starts."""
        self._start(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Attempt], trial: Attempt, result: dict[str, Any], **info: Any
    ) -> None:
        """New rows of the trial, and possibly its outcome."""
        self._heard[trial.trial_id] = time.monotonic()
        trial.rows, trial.outcome = result.pop("rows"), result.pop("outcome", None)  # other callbacks get numbers only
        with self._guarded.listening() as listener:
            if trial.rows:
                listener.reported(trial.spec, trial.rows)
            if trial.outcome is not None:
                outcome = _with_quarantine(trial.outcome)
                self._quarantine.add(outcome.lost_devices)
                listener.finished(trial.spec, outcome)
                self._metrics.finished(trial.spec, outcome)

    def on_trial_error(self, iteration: int, trials: list[Attempt], trial: Attempt, **info: Any) -> None:
        """The supervisor itself failed, because of its process, its node, or Ray."""
        if trial.trial_id not in self._started:
            self._start(trial)
        wall_s = time.monotonic() - self._started[trial.trial_id]
        outcome = _broken(trial.error_file, wall_s)
        with self._guarded.listening() as listener:
            listener.finished(trial.spec, outcome)
        self._metrics.finished(trial.spec, outcome)

    def on_step_end(self, iteration: int, trials: list[Attempt], **info: Any) -> None:
        """Let the listener do what is due, and kill supervisors that are silent."""
        with self._guarded.listening() as listener:
            listener.ticked()
        for trial in trials:
            silent_s = time.monotonic() - self._heard.get(trial.trial_id, float("inf"))
            if trial.status == Trial.RUNNING and silent_s > SILENT_S:
                del self._heard[trial.trial_id]
                ray.kill(trial.temporary_state.ray_actor)

    def _start(self, trial: Attempt) -> None:
        trial.taken()
        self._started[trial.trial_id] = self._heard[trial.trial_id] = time.monotonic()
        self._metrics.started(trial.spec)
        with self._guarded.listening() as listener:
            listener.started(trial.spec)


def _with_quarantine(outcome: Outcome) -> Outcome:
    """The outcome, with the quarantined GPUs added to its note."""
    lost = [
        f"GPU {name} of node {node[:8]}" for node, _, name in (each.partition("/") for each in outcome.lost_devices)
    ]
    return replace(outcome, note=f"{outcome.note}; in quarantine: {', '.join(lost)}") if lost else outcome


def _broken(error_file: str | None, wall_s: float) -> Outcome:
    trace = Path(error_file).read_text() if error_file else ""
    hint = " If the cluster was started without a token, set RAY_AUTH_MODE=disabled" if _UNHEARD in trace else ""
    # The supervisor computes nothing: only its node or Ray can have ended it.
    return Outcome(
        status=Status.FAILED,
        cause=Cause.NODE,
        note=f"the gang's supervisor failed: {in_short(trace)}{hint}",
        trace=trace,
        wall_s=wall_s,
    )
