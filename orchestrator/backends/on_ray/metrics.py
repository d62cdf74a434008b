"""A sweep's metrics in Ray's metrics service, for Prometheus and Ray's dashboard.

- `orchestrator_trials`, by `sweep` and `state`: attempts that are running, or have ended with a status.
- `orchestrator_samples_per_s`, by `sweep` and `trial`: throughput of the last timed attempt.
- `orchestrator_gpu_hours`, by `sweep`: GPU-hours of all ended attempts; worker-hours without GPUs.
"""

from __future__ import annotations

from collections import Counter as Count

from ray.util.metrics import Counter, Gauge

from orchestrator.journal.outcome import Outcome, figure
from sweeps.trial import TrialSpec

RUNNING = "running"


class Metrics:
    """The metrics of one run of a back end."""

    def __init__(self) -> None:
        self._states: Count[tuple[str, str]] = Count()
        self._trials = Gauge("orchestrator_trials", "Trials by state.", tag_keys=("sweep", "state"))
        self._pace = Gauge("orchestrator_samples_per_s", "Throughput of a trial.", tag_keys=("sweep", "trial"))
        self._hours = Counter("orchestrator_gpu_hours", "GPU-hours of ended attempts.", tag_keys=("sweep",))

    def started(self, trial: TrialSpec) -> None:
        """Count an attempt that has started."""
        self._count(trial.sweep, RUNNING, 1)

    def finished(self, trial: TrialSpec, outcome: Outcome) -> None:
        """Count an attempt that has ended."""
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
