"""Trials on Ray Tune: one Tune trial is one gang in one placement group."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial

from orchestrator.backends.agenda import Agenda
from orchestrator.backends.conduct import Conduct
from orchestrator.backends.hearing import Hearing
from orchestrator.backends.on_ray.attempt import Attempt, Starting
from orchestrator.backends.on_ray.cluster import Cluster, handler_kept
from orchestrator.backends.on_ray.early_stop import EarlyStop
from orchestrator.backends.on_ray.extensions import Extensions
from orchestrator.backends.on_ray.gang import Supervisor
from orchestrator.backends.on_ray.head import HeadWatch
from orchestrator.backends.on_ray.metrics import Metrics
from orchestrator.backends.on_ray.order import Order
from orchestrator.backends.on_ray.plain import plain_tune
from orchestrator.backends.on_ray.queue import TrialQueue
from orchestrator.backends.quarantine import Quarantine
from orchestrator.journal.cause import Cause
from orchestrator.journal.listener import Listener
from orchestrator.journal.outcome import Outcome
from sweeps.feasibility import Node
from sweeps.status import Status
from sweeps.trial import TrialSpec

_UNHEARD = "The actor never ran"
"""What Ray says of every actor where the cluster's head cannot call the driver back."""

SILENT_S = 120.0
"""A supervisor that says nothing for so long, though it has something to say twice a second, is ended from outside."""


class RayBackend:
    """Runs trials on a Ray cluster: the one at `address` (or RAY_ADDRESS), else one started here until `close`.

    `cpus` and `gpus` overrule what Ray counts on this machine. Of a cluster only nodes with all `labels` are used.
    Callbacks of the `extensions` are told after the listener; what they raise ends the sweep.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        dashboard: bool = True,
        verbose: bool = False,
        cpus: int | None = None,
        gpus: int | None = None,
        labels: Mapping[str, str] | None = None,
        conduct: Conduct | None = None,
        extensions: Extensions | None = None,
    ) -> None:
        self._conduct = conduct or Conduct()
        self._extensions = extensions or Extensions()
        self._verbose = verbose
        self._cluster = Cluster(address=address, dashboard=dashboard, verbose=verbose, cpus=cpus, gpus=gpus)
        self._labels = labels or {}
        self._quarantine = Quarantine()

    @property
    def dashboard_url(self) -> str:
        """Where Ray's dashboard answers; empty where there is none."""
        return self._cluster.dashboard_url

    def nodes(self) -> tuple[Node, ...]:
        """The cluster's living nodes that have the labels asked for, with the GPUs that were not lost."""
        return self._quarantine.without(self._cluster.nodes(self._labels))

    def run(self, trials: Sequence[TrialSpec] | Agenda, results_dir: Path, listener: Listener) -> None:
        """Run the trials as `Backend` says; what the listener raises is raised here, after everything has ended."""
        hearing = Hearing(listener)
        agenda = trials if isinstance(trials, Agenda) else Agenda(trials)
        stop = _Stop(hearing)
        starting = Starting(
            results_dir=results_dir.absolute(),
            conduct=self._conduct,
            quarantine=self._quarantine,
            secrets=self._extensions.secrets,
        )
        queue = TrialQueue(agenda, self.nodes, starting, stop.stop_all)
        rule = self._conduct.early_stopping
        early_stop = EarlyStop(rule, agenda.is_timed) if rule else None
        with tempfile.TemporaryDirectory() as scratch, plain_tune(verbose=self._verbose):
            try:
                with handler_kept(signal.SIGUSR1), HeadWatch():
                    tune.run(
                        Supervisor,
                        name=self._extensions.name(results_dir),
                        storage_path=self._extensions.storage_path or scratch,
                        search_alg=queue,
                        scheduler=Order(queue.stranded, early_stop),
                        stop=stop,
                        callbacks=[_Relay(hearing, self._quarantine), *self._extensions.callbacks],
                        reuse_actors=True,
                        raise_on_failed_trial=False,
                        verbose=2 if self._verbose else 0,
                    )
            finally:
                hearing.reraise()

    def close(self) -> None:
        """Give the cluster back."""
        self._cluster.close()


class _Relay(Callback):  # type: ignore[misc]
    """Tells the listener, and Ray's metrics, in the project's words what Tune says in its own."""

    def __init__(self, hearing: Hearing, quarantine: Quarantine) -> None:
        self._hearing = hearing
        self._quarantine = quarantine
        self._started: dict[str, float] = {}
        self._heard: dict[str, float] = {}

    def setup(self, *given: Any, **info: Any) -> None:
        """Make what Tune could not pickle."""
        self._metrics = Metrics()

    def on_trial_start(self, iteration: int, trials: list[Attempt], trial: Attempt, **info: Any) -> None:
        self._start(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Attempt], trial: Attempt, result: dict[str, Any], **info: Any
    ) -> None:
        self._heard[trial.trial_id] = time.monotonic()
        trial.rows, trial.outcome = result.pop("rows"), result.pop("outcome", None)  # others are told figures only
        with self._hearing.listening() as listener:
            if trial.rows:
                listener.reported(trial.spec, trial.rows)
            if trial.outcome is not None:
                outcome = _with_quarantine(trial.outcome)
                self._quarantine.add(outcome.lost_devices)
                self._metrics.finished(trial.spec, outcome)
                listener.finished(trial.spec, outcome)

    def on_trial_error(self, iteration: int, trials: list[Attempt], trial: Attempt, **info: Any) -> None:
        """The supervisor itself failed: its process, its node, or Ray."""
        if trial.trial_id not in self._started:
            self._start(trial)
        wall_s = time.monotonic() - self._started[trial.trial_id]
        outcome = _broken(trial.error_file, wall_s)
        self._metrics.finished(trial.spec, outcome)
        with self._hearing.listening() as listener:
            listener.finished(trial.spec, outcome)

    def on_step_end(self, iteration: int, trials: list[Attempt], **info: Any) -> None:
        with self._hearing.listening() as listener:
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
        with self._hearing.listening() as listener:
            listener.started(trial.spec)


class _Stop(Stopper):  # type: ignore[misc]
    """Ends the whole experiment when the listener says so."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        with self._hearing.listening() as listener:
            return listener.stopping()


def _with_quarantine(outcome: Outcome) -> Outcome:
    """The outcome, its note with what is not used any more."""
    told = [
        f"GPU {name} of node {node[:8]}" for node, _, name in (each.partition("/") for each in outcome.lost_devices)
    ]
    return replace(outcome, note=f"{outcome.note}; in quarantine: {', '.join(told)}") if told else outcome


def _broken(error_file: str | None, wall_s: float) -> Outcome:
    trace = Path(error_file).read_text() if error_file else ""
    lines = trace.strip().splitlines() or ["no reason known"]
    if _UNHEARD in trace:
        lines.append(f"{lines[-1]} If the cluster was started without a token, set RAY_AUTH_MODE=disabled")
    # The supervisor computes nothing: what ends it is its node, or Ray.
    return Outcome(
        status=Status.FAILED,
        cause=Cause.NODE,
        note=f"the gang's supervisor failed: {lines[-1]}",
        trace=trace,
        wall_s=wall_s,
    )
