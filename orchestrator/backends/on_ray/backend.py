"""The back end that runs trials on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.backends.agenda import Agenda
from orchestrator.backends.conduct import Conduct
from orchestrator.backends.guarded_listener import GuardedListener
from orchestrator.backends.on_ray.cluster import Cluster
from orchestrator.backends.on_ray.cluster_spec import ClusterSpec
from orchestrator.backends.on_ray.demand import Demand
from orchestrator.backends.on_ray.extensions import Extensions
from orchestrator.backends.quarantine import Quarantine
from orchestrator.journal.listener import Listener
from orchestrator.scheduling.node import Node
from orchestrator.scheduling.placement import Shape
from sweeps.trial import TrialSpec


class RayBackend:
    """Runs trials on a Ray cluster, until `close`.

    Callbacks of the `extensions` are called after the listener; an exception in one of them ends the sweep.
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
        """URL of Ray's dashboard; empty if there is none."""
        return self._cluster.dashboard_url

    def nodes(self) -> tuple[Node, ...]:
        """The cluster's living nodes with the requested labels, without lost GPUs."""
        return self._quarantine.without(self._cluster.nodes())

    def ask_for(self, shapes: Sequence[Shape]) -> None:
        """Ask the autoscaler for nodes for these gangs, in addition to the existing ones."""
        if self._demand is not None:
            self._demand.settle(shapes, self.nodes())

    def run(self, trials: Sequence[TrialSpec] | Agenda, results_dir: Path, listener: Listener) -> None:
        """Run the trials; see `Backend`. An exception from the listener is raised here, after everything has ended."""
        # Imports Tune, which takes most of a second; meanwhile Ray starts its first processes.
        from orchestrator.backends.on_ray.experiment import Experiment

        guarded = GuardedListener(listener)
        experiment = Experiment(
            nodes=self.nodes,
            conduct=self._conduct,
            quarantine=self._quarantine,
            extensions=self._extensions,
            demand=self._demand,
            verbose=self._verbose,
        )
        try:
            experiment.run(trials if isinstance(trials, Agenda) else Agenda(trials), results_dir, guarded)
        finally:
            if self._demand is not None:
                self._demand.close()
            guarded.reraise()

    def close(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        self._cluster.close()
