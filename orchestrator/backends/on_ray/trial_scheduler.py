"""Tune's order of trials, which is the queue's own, but for those that can begin no more, and for hopeless ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from orchestrator.backends.on_ray.attempt import Attempt
from orchestrator.backends.on_ray.early_stop import EarlyStop


class AgendaScheduler(FIFOScheduler):  # type: ignore[misc]
    """First come, first served; a trial that was promised a node which is lost since would wait for ever."""

    def __init__(self, stranded: Callable[[], Sequence[Trial]], early_stop: EarlyStop | None = None) -> None:
        """`stranded` tells which trials those are, and takes them back."""
        super().__init__()
        self._stranded = stranded
        self._early_stop = early_stop

    def __getstate__(self) -> dict[str, object]:
        """Tune may write a copy of whatever it is given into a state that nobody reads."""
        return {}

    def on_trial_result(self, tune_controller: Any, trial: Attempt, result: dict[str, Any]) -> str:
        """Go on; a hopeless trial's supervisor is asked to end it, which keeps the processes and tells how it ended."""
        if why := self._why_hopeless(trial, result.get("rows", ())):
            trial.temporary_state.ray_actor.give_up.remote(trial.spec.trial_id, why)
        return str(super().on_trial_result(tune_controller, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Attempt, result: dict[str, Any]) -> None:
        """Take account of the last rows: a short trial has no others, and other trials are compared with it."""
        self._why_hopeless(trial, trial.rows)
        super().on_trial_complete(tune_controller, trial, result)

    def _why_hopeless(self, trial: Attempt, rows: Sequence[Mapping[str, Any]]) -> str:
        return self._early_stop.why_hopeless(trial, rows) if self._early_stop else ""

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The first that waits."""
        for trial in self._stranded():
            tune_controller.stop_trial(trial)
        return super().choose_trial_to_run(tune_controller)
