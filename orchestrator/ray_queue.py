"""The agenda's trials, handed to Tune one by one, each when it may start and to where it may."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ray.tune import Experiment
from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm

from orchestrator.agenda import Agenda
from orchestrator.ray_gang import bundles
from orchestrator.telemetry_sampler import Sampling
from orchestrator.watch import NO_LIMITS, Limits
from sweeps.feasibility import Node
from sweeps.scheduler import Start

LOOK_EVERY_S = 2.0
"""How often the cluster is asked for its nodes: some may be lost, and others come."""


class TrialQueue(SearchAlgorithm):  # type: ignore[misc]
    """Tune's source of trials.

    Tune starts what it is given in whatever order its resources come free, and keeps idle actors only for trials it
    already knows. So it is given a trial no sooner than the trial could start: order and waiting stay ours, and an idle
    gang is taken by the next trial of its shape, or gives way at once to one of another shape. On several nodes Ray is
    told which ones, because the agenda counts on it.
    """

    def __init__(
        self,
        agenda: Agenda,
        nodes: Callable[[], Sequence[Node]],
        results_dir: Path,
        workers: str,
        limits: Limits = NO_LIMITS,
        sampling: Sampling | None = None,
    ) -> None:
        self._limits = limits
        self._sampling = sampling or Sampling()
        self._agenda = agenda
        self._given: list[Trial] = []
        self._count = 0
        self._nodes = nodes
        self._looked_s = time.monotonic()
        self._results_dir = results_dir
        self._workers = workers
        self._tell_nodes()

    def __getstate__(self) -> dict[str, object]:
        """Tune writes a copy of whatever it is given into a state that nobody reads."""
        return {}

    @property
    def total_samples(self) -> int:
        """How many trials there are in all."""
        return len(self._agenda) + self._count

    def add_configurations(self, experiments: list[Experiment]) -> None:
        """Take Tune's word for where its trials belong."""
        self._experiment = experiments[0]

    def next_trial(self) -> Trial | None:
        """The next trial, if it may start now."""
        now_s = time.monotonic()
        for trial in [each for each in self._given if each.is_finished()]:
            self._given.remove(trial)
            self._agenda.ended(trial.trial_id, now_s, (trial.last_result or {}).get("outcome"))
        if now_s - self._looked_s > LOOK_EVERY_S:
            self._tell_nodes()
        start = self._agenda.next(now_s)
        if start is None:
            return None
        trial = self._trial(start)
        self._given.append(trial)
        self._count += 1
        return trial

    def is_finished(self) -> bool:
        """Whether no further trial will come."""
        return self._finished or not len(self._agenda)

    def _tell_nodes(self) -> None:
        self._looked_s = time.monotonic()
        self._alive = self._nodes()
        self._agenda.on(self._alive, self._looked_s)

    def _trial(self, start: Start) -> Trial:
        spec = start.trial
        config: dict[str, Any] = {
            "trial": spec,
            "trial_dir": str(self._results_dir / "trials" / spec.trial_id),
            "workers": self._workers,
            "limits": self._limits,
            "sampling": self._sampling,
        }
        return Trial(
            self._experiment.spec["run"],
            config=config,
            trial_id=spec.trial_id,
            storage=self._experiment.storage,
            placement_group_factory=bundles(spec.gang, start.nodes if len(self._alive) > 1 else ()),
            trial_name_creator=lambda trial: spec.label,
            trial_dirname_creator=lambda trial: spec.trial_id,
        )
