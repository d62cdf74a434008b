"""Tune's trial scheduler: the queue's order, except for stranded trials and hopeless ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from orchestrator.backends.on_ray.attempt import Attempt
from orchestrator.backends.on_ray.early_stop import EarlyStop


class AgendaScheduler(FIFOScheduler):  # type: ignore[misc]
    """First come, first served; takes back trials whose promised node was lost, which would wait forever."""

    def __init__(self, stranded: Callable[[], Sequence[Trial]], early_stop: EarlyStop | None = None) -> None:
        """`stranded` returns those trials and queues them again."""
        super().__init__()
        self._stranded = stranded
        self._early_stop = early_stop

    def __getstate__(self) -> dict[str, object]:
        """Nothing: Tune may save its arguments as part of a state that is never read."""
        return {}

    def on_trial_result(self, tune_controller: Any, trial: Attempt, result: dict[str, Any]) -> str:
        """Continue; a hopeless trial is ended by its supervisor, which keeps the processes and reports the outcome."""
        if why := self._why_hopeless(trial, result.get("rows", ())):
            trial.temporary_state.ray_actor.give_up.remote(trial.spec.trial_id, why)
        return str(super().on_trial_result(tune_controller, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Attempt, result: dict[str, Any]) -> None:
        """Take the last rows into account: other trials are compared with them, and a short trial has no others."""
        self._why_hopeless(trial, trial.rows)
        super().on_trial_complete(tune_controller, trial, result)

    def _why_hopeless(self, trial: Attempt, rows: Sequence[Mapping[str, Any]]) -> str:
        return self._early_stop.why_hopeless(trial, rows) if self._early_stop else ""

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The first waiting trial."""
        for trial in self._stranded():
            tune_controller.stop_trial(trial)
        return super().choose_trial_to_run(tune_controller)
