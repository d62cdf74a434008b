"""The agenda's trials, handed to Tune one by one, each when it may start and to where it may."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from ray.tune import Experiment
from ray.tune.experiment import Trial
from ray.tune.search import SearchAlgorithm

from orchestrator.backends.agenda import Agenda
from orchestrator.backends.on_ray.attempt import Attempt, Starting
from orchestrator.backends.on_ray.bundles import Bundles
from orchestrator.backends.on_ray.demand import Demand
from orchestrator.backends.on_ray.plain_values import plain_config
from orchestrator.backends.on_ray.start_ahead import StartAhead
from orchestrator.journal.outcome import Cause
from sweeps.feasibility import Node
from sweeps.scheduler import Start
from sweeps.trial import TrialSpec

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
        starting: Starting,
        stopping: Callable[[], bool] = lambda: False,
        demand: Demand | None = None,
    ) -> None:
        """`stopping`: whether the sweep is to end. Tune asks nobody else while it waits for a first trial to start.

        `demand`: how further nodes are asked for; None: there are none to be had.
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
        """Whether there is a gang with such bundles that waits for a trial; Tune's controller knows."""
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
        """Trials that have not begun, and were to on a node that is gone; they wait for their turn once more."""
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
            self._looked_s = -math.inf  # the next attempt is not to go where nothing is any more

    def gangs_needed(self) -> bool:
        """Whether gangs that idle are kept for other trials; where nodes come and go, only if one could start there."""
        return self._demand is None or self._agenda.needs_gangs

    def _ask(self, now_s: float) -> None:
        """Once after each look at the nodes: have more of them made, where trials wait for them."""
        if self._demand is not None and not self._asked:
            self._demand.settle(self._agenda.wanted(now_s), self._alive)
            self._asked = True

    def _tell_nodes(self) -> None:
        self._looked_s, self._asked = time.monotonic(), False
        before, self._alive = self._alive, self._nodes()
        if self._demand is not None and before != self._alive:
            self._demand.close()  # what was asked for may have come, and is for the trials now
        # For good: else, once the others are lost, the gangs kept on the last node would not be those asked for.
        self._several = self._several or len(self._alive) > 1
        self._agenda.on(self._alive, self._looked_s)

    def _bundles(self, start: Start) -> Bundles:
        """Of the gang that the trial takes, which may be larger than its own."""
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
            trial_id=f"{spec.trial_id}-{self._count}",  # another attempt at a trial is another trial to Tune
            storage=self._experiment.storage,
            placement_group_factory=asked,
        )
