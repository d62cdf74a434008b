"""The planned trials, handed to Tune one by one: in their order, and each when there is room for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ray.tune import Experiment
from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm

from orchestrator.ray_gang import bundles
from orchestrator.telemetry_sampler import Sampling
from sweeps.feasibility import Node
from sweeps.trial import TrialSpec


class TrialQueue(SearchAlgorithm):  # type: ignore[misc]
    """Tune's source of trials.

    Tune starts what it is given in whatever order its resources come free, and keeps idle actors only for trials it
    already knows. So it is given a trial no sooner than the trial could start: order and waiting stay ours, and an idle
    gang is taken by the next trial of its shape, or gives way at once to one of another shape.
    """

    def __init__(
        self,
        trials: Iterable[TrialSpec],
        nodes: Sequence[Node],
        results_dir: Path,
        workers: str,
        sampling: Sampling | None = None,
    ) -> None:
        self._waiting = deque(trials)
        self._given: list[Trial] = []
        self._nodes = nodes
        self._results_dir = results_dir
        self._workers = workers
        self._sampling = sampling or Sampling()

    @property
    def total_samples(self) -> int:
        """How many trials there are in all."""
        return len(self._waiting) + len(self._given)

    def add_configurations(self, experiments: list[Experiment]) -> None:
        """Take Tune's word for where its trials belong."""
        self._experiment = experiments[0]

    def next_trial(self) -> Trial | None:
        """The next trial, if it may start now."""
        self._given = [trial for trial in self._given if not trial.is_finished()]
        running = [trial.config["trial"] for trial in self._given]
        if not self._waiting or not may_start(self._waiting[0], running, self._nodes):
            return None
        trial = self._trial(self._waiting.popleft())
        self._given.append(trial)
        return trial

    def is_finished(self) -> bool:
        """Whether no further trial will come."""
        return self._finished or not self._waiting

    def _trial(self, spec: TrialSpec) -> Trial:
        config: dict[str, Any] = {
            "trial": spec,
            "trial_dir": str(self._results_dir / "trials" / spec.trial_id),
            "workers": self._workers,
            "sampling": self._sampling,
        }
        return Trial(
            self._experiment.spec["run"],
            config=config,
            trial_id=spec.trial_id,
            storage=self._experiment.storage,
            placement_group_factory=bundles(spec.gang),
            trial_name_creator=lambda trial: spec.label,
            trial_dirname_creator=lambda trial: spec.trial_id,
        )


def may_start(trial: TrialSpec, running: Sequence[TrialSpec], nodes: Sequence[Node]) -> bool:
    """Whether the trial may start beside those that run: an exclusive one runs alone, others while there is room.

    Room is counted over all nodes together; where it is scattered, the gang waits for its placement group.
    """
    if not running:
        return True
    if "exclusive" in (trial.timing, *(other.timing for other in running)):
        return False
    gangs = [other.gang for other in (trial, *running)]
    cpus = sum(gang.ranks * gang.cpus_per_rank for gang in gangs)
    return cpus <= sum(node.cpus for node in nodes) and sum(g.gpus for g in gangs) <= sum(node.gpus for node in nodes)
