"""What Ray's own metrics tell of a sweep, beside those of its nodes: for Prometheus, and so for Ray's dashboard.

- `orchestrator_trials`, by `sweep` and `state`: attempts that run, or the status they ended with.
- `orchestrator_samples_per_s`, by `sweep` and `trial`: of the last trial of each cell and seed that was timed.
- `orchestrator_gpu_hours`, by `sweep`: what all ended attempts held; worker-hours where there are no GPUs.
"""

from __future__ import annotations

from collections import Counter as Count

from ray.util.metrics import Counter, Gauge

from orchestrator.journal.outcome import Outcome, figure
from sweeps.trial import TrialSpec

RUNNING = "running"


class Metrics:
    """Of one run of a back end; told of starts and ends."""

    def __init__(self) -> None:
        self._states: Count[tuple[str, str]] = Count()
        self._trials = Gauge("orchestrator_trials", "Trials by state.", tag_keys=("sweep", "state"))
        self._pace = Gauge("orchestrator_samples_per_s", "Throughput of a trial.", tag_keys=("sweep", "trial"))
        self._hours = Counter("orchestrator_gpu_hours", "GPU-hours of ended attempts.", tag_keys=("sweep",))

    def started(self, trial: TrialSpec) -> None:
        """An attempt runs."""
        self._count(trial.sweep, RUNNING, 1)

    def finished(self, trial: TrialSpec, outcome: Outcome) -> None:
        """An attempt is over."""
        self._count(trial.sweep, RUNNING, -1)
        self._count(trial.sweep, outcome.status.value, 1)
        if hours := trial.gpus_held * outcome.wall_s / 3600:
            self._hours.inc(hours, {"sweep": trial.sweep})
        pace = figure(outcome.metrics, "samples_per_s")
        if pace is not None:
            self._pace.set(pace, {"sweep": trial.sweep, "trial": trial.label.partition("/")[2]})

    def _count(self, sweep: str, state: str, change: int) -> None:
        self._states[sweep, state] += change
        self._trials.set(self._states[sweep, state], {"sweep": sweep, "state": state})
