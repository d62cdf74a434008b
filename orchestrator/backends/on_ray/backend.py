"""Trials on Ray Tune: one Tune trial is one gang in one placement group."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Stopper

from orchestrator.backends.agenda import Agenda
from orchestrator.backends.conduct import Conduct
from orchestrator.backends.hearing import Hearing
from orchestrator.backends.on_ray.attempt import Starting
from orchestrator.backends.on_ray.cluster import Cluster
from orchestrator.backends.on_ray.cluster_spec import ClusterSpec
from orchestrator.backends.on_ray.controller import Gang
from orchestrator.backends.on_ray.demand import Demand
from orchestrator.backends.on_ray.early_stop import EarlyStop
from orchestrator.backends.on_ray.extensions import Extensions
from orchestrator.backends.on_ray.head import HeadWatch
from orchestrator.backends.on_ray.order import Order
from orchestrator.backends.on_ray.plain import plain_tune
from orchestrator.backends.on_ray.queue import TrialQueue
from orchestrator.backends.on_ray.relay import Relay
from orchestrator.backends.on_ray.signals import handler_kept
from orchestrator.backends.quarantine import Quarantine
from orchestrator.journal.listener import Listener
from sweeps.feasibility import Node
from sweeps.placement import Shape
from sweeps.trial import TrialSpec


class RayBackend:
    """Runs trials on a Ray cluster, until `close`.

    Callbacks of the `extensions` are told after the listener; what they raise ends the sweep.
    """

    def __init__(
        self, cluster: ClusterSpec, *, conduct: Conduct | None = None, extensions: Extensions | None = None
    ) -> None:
        self._conduct = conduct or Conduct()
        self._extensions = extensions or Extensions()
        self._verbose = cluster.verbose
        self._cluster = Cluster(cluster, start_ahead=self._conduct.start_ahead)
        self._quarantine = Quarantine()
        self._demand = Demand(cluster.labels, self._quarantine) if cluster.asks else None

    @property
    def dashboard_url(self) -> str:
        """Where Ray's dashboard answers; empty where there is none."""
        return self._cluster.dashboard_url

    def nodes(self) -> tuple[Node, ...]:
        """The cluster's living nodes that have the labels asked for, with the GPUs that were not lost."""
        return self._quarantine.without(self._cluster.nodes())

    def ask_for(self, shapes: Sequence[Shape]) -> None:
        """Have the autoscaler make nodes for such gangs, beyond those that there are."""
        if self._demand is not None:
            self._demand.settle(shapes, self.nodes())

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
        queue = TrialQueue(agenda, self.nodes, starting, stop.stop_all, self._demand)
        rule = self._conduct.early_stopping
        early_stop = EarlyStop(rule, agenda.is_timed) if rule else None
        with (
            tempfile.TemporaryDirectory() as scratch,
            plain_tune(verbose=self._verbose),
        ):
            try:
                with handler_kept(signal.SIGUSR1), HeadWatch():
                    tune.run(
                        Gang,
                        name=self._extensions.name(results_dir),
                        storage_path=self._extensions.storage_path or scratch,
                        search_alg=queue,
                        scheduler=Order(queue.stranded, early_stop),
                        stop=stop,
                        callbacks=[Relay(hearing, self._quarantine), *self._extensions.callbacks],
                        reuse_actors=True,
                        raise_on_failed_trial=False,
                        verbose=2 if self._verbose else 0,
                    )
            finally:
                if self._demand is not None:
                    self._demand.close()
                hearing.reraise()

    def close(self) -> None:
        """Give the cluster back."""
        self._cluster.close()


class _Stop(Stopper):  # type: ignore[misc]
    """Ends the whole experiment when the listener says so."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        with self._hearing.listening() as listener:
            return listener.stopping()
