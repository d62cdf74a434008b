"""Hands the agenda's trials to Tune one by one, each when and where it may start."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from ray.tune import Experiment
from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm

from orchestrator.backends.agenda import Agenda
from orchestrator.backends.on_ray.attempt import Attempt, Bundles, Starting
from orchestrator.backends.on_ray.demand import Demand
from orchestrator.backends.on_ray.plain_values import plain_config
from orchestrator.backends.on_ray.start_ahead import StartAhead
from orchestrator.journal.outcome import Cause
from orchestrator.scheduling.node import Node
from orchestrator.scheduling.scheduler import Start
from sweeps.trial import TrialSpec

LOOK_EVERY_S = 2.0
"""How often to ask the cluster for its nodes, which may be lost or added."""


class TrialQueue(SearchAlgorithm):  # type: ignore[misc]
    """Tune's source of trials.

    Tune starts trials in whatever order resources become free, and keeps idle actors only for trials it already knows.
    Therefore it gets each trial only when the trial can start: the agenda decides on order and waiting, and an idle
    gang is either used by the next trial of its shape or ends for one of another shape. If there are several nodes,
    each gang names its nodes, because the agenda relies on them.
    """

    def __init__(
        self,
        agenda: Agenda,
        nodes: Callable[[], Sequence[Node]],
        starting: Starting,
        stopping: Callable[[], bool] = lambda: False,
        demand: Demand | None = None,
    ) -> None:
        """`stopping`: whether the sweep is to end; while it waits for its first trial, Tune asks only this queue.

        `demand` asks for further nodes; None if there are none to be had.
        """
        self._stopping = stopping
        self._demand = demand
        self._agenda = agenda
        self._nodes = nodes
        self._starting = starting
        self._given: list[tuple[Attempt, Start]] = []
        self._taken_back: set[str] = set()
        self._count = 0
        self._several = False
        self._alive: Sequence[Node] = ()
        self._asked = False
        self._ahead = StartAhead(wanted=starting.conduct.start_ahead)
        self.is_kept: Callable[[Any], bool] = lambda request: False
        """Whether an idle gang with these bundles is kept; set by the controller."""
        self._tell_nodes()

    def __getstate__(self) -> dict[str, object]:
        """Nothing: Tune saves its arguments as part of a state that is never read."""
        return {}

    @property
    def total_samples(self) -> int:
        """The total number of trials."""
        return len(self._agenda) + self._count

    def add_configurations(self, experiments: list[Experiment]) -> None:
        """Remember Tune's experiment, to which its trials belong."""
        self._experiment = experiments[0]

    def next_trial(self) -> Attempt | None:
        """The next trial, if it may start now."""
        now_s = time.monotonic()
        for trial, start in [each for each in self._given if each[0].is_finished()]:
            self._given.remove((trial, start))
            self._ended(trial, start.trial, now_s)
        if self._stopping():
            return None
        if now_s - self._looked_s > LOOK_EVERY_S:
            self._tell_nodes()
        next_start = self._agenda.next(now_s)
        if next_start is None:
            self._ask(now_s)
            self._ahead.settle(self._agenda.upcoming, now_s)
            return None
        asked = self._bundles(next_start)
        self._ahead.prepare_for(next_start.trial.trainable, self._agenda.threads)
        if not self.is_kept(asked):
            self._ahead.begins(next_start.nodes, now_s)
        trial = self._trial(next_start.trial, asked)
        self._given.append((trial, next_start))
        self._count += 1
        return trial

    def stranded(self) -> list[Trial]:
        """Trials that have not started and were promised a node that is gone; they are queued again."""
        alive = {node.node_id for node in self._alive}
        found = [
            trial
            for trial, start in self._given
            if trial.status == Trial.PENDING and not {node.node_id for node in start.nodes} <= alive
        ]
        self._taken_back.update(trial.trial_id for trial in found)
        return found

    def is_finished(self) -> bool:
        """Whether no further trial will come."""
        return self._finished or self._agenda.over or self._stopping()

    def _ended(self, trial: Attempt, spec: TrialSpec, now_s: float) -> None:
        outcome = trial.outcome
        self._agenda.ended(spec.trial_id, now_s, outcome)
        if trial.trial_id in self._taken_back:
            self._agenda.again(spec)
        elif outcome is None or outcome.cause is Cause.NODE:
            self._looked_s = -math.inf  # look again, so that the next attempt avoids a lost node

    def gangs_needed(self) -> bool:
        """Whether to keep idle gangs for other trials; on an autoscaled cluster, only if a trial could use one."""
        return self._demand is None or self._agenda.needs_gangs

    def _ask(self, now_s: float) -> None:
        """Ask for more nodes if trials wait for them, once after each look at the nodes."""
        if self._demand is not None and not self._asked:
            self._demand.settle(self._agenda.wanted(now_s), self._alive)
            self._asked = True

    def _tell_nodes(self) -> None:
        self._looked_s, self._asked = time.monotonic(), False
        before, self._alive = self._alive, self._nodes()
        if self._demand is not None and before != self._alive:
            self._demand.close()  # the requested nodes may have arrived, and must be free for the trials
        # Never reset: gangs kept on the last remaining node name it, and would no longer match.
        self._several = self._several or len(self._alive) > 1
        self._agenda.on(self._alive, self._looked_s)

    def _bundles(self, start: Start) -> Bundles:
        """The bundles of the gang that the trial uses, which may be larger than its own."""
        own = start.trial.gang
        place = own if self._starting.conduct.workers == "fresh" else self._agenda.kept_gang(start)
        nodes = start.nodes[:1] * place.ranks if place != own else start.nodes
        return Bundles(place, nodes if self._several else ())

    def _trial(self, spec: TrialSpec, asked: Bundles) -> Attempt:
        return Attempt(
            self._experiment.spec["run"],
            spec,
            given=self._starting.given(spec),
            shown=plain_config(spec, self._starting.secrets),
            trial_id=f"{spec.trial_id}-{self._count}",  # each attempt is a trial of its own to Tune
            storage=self._experiment.storage,
            placement_group_factory=asked,
        )
