"""Decides which trial starts next and where, given what has ended. Uses no clock and no processes, only values."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.scheduling.node import Node
from orchestrator.scheduling.occupancy import Occupancy
from orchestrator.scheduling.order import Expected, Stretch, stretches
from orchestrator.scheduling.placement import Placement, Shape, weight
from orchestrator.scheduling.reservation import Reservation, reserve
from orchestrator.scheduling.upcoming import Upcoming, upcoming
from sweeps.trial import TrialSpec

HURRY = 1.5
"""A trial starts early once the rest of the sweep is expected to take less than this multiple of its duration.

Estimates are off by about a third, and a long trial that starts last delays the whole sweep.
"""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A trial that may start now, and where."""

    trial: TrialSpec
    placement: Placement
    nodes: tuple[Node, ...]
    """One entry per rank."""


class Scheduler:
    """Hands out the trials of a sweep, each as soon as it may start; every trial must fit the nodes.

    It follows the order of `stretches`. If a trial has to wait, later ones may start, but nodes are reserved for it:
    only trials expected to end before they are needed may still start there. So neither large gangs nor small ones
    wait forever. A trial that would outlast all others starts early.
    """

    def __init__(
        self, trials: Sequence[TrialSpec], nodes: Sequence[Node], expected_s: Expected, *, seed_by_seed: bool = False
    ) -> None:
        """`seed_by_seed`: see `stretches`."""
        self._expected_s, self._seed_by_seed = expected_s, seed_by_seed
        self._queues: dict[Shape, deque[tuple[int, Stretch]]] = {}
        self._number = 0
        self._waiting: set[str] = set()
        self._running: dict[str, tuple[Placement, float]] = {}
        self._room = Occupancy(nodes)
        self.add(trials)

    def __len__(self) -> int:
        """The number of waiting trials."""
        return len(self._waiting)

    def waiting(self) -> list[TrialSpec]:
        """The trials that have not started, in order."""
        numbered = sorted((each for queue in self._queues.values() for each in queue), key=lambda each: each[0])
        return [trial for _, stretch in numbered for trial in stretch.trials]

    def next(self, now_s: float) -> Start | None:
        """The trial to start now; None if all have started, or the rest must wait until one ends.

        `now_s` must come from a monotonic clock.
        """
        if len(self._blocked) == len(self._queues):
            return None
        for stretch, trial in self._candidates(now_s):
            if stretch.shape not in self._blocked and (start := self._try(stretch, trial, now_s)):
                return start
        return None

    def ended(self, trial_id: str) -> None:
        """Free the place of a trial that has ended."""
        placement, until_s = self._running.pop(trial_id)
        self._room.release(placement)
        self._count_running(placement, until_s, -1)
        self._blocked.clear()

    def add(self, trials: Sequence[TrialSpec]) -> None:
        """Append these trials to the waiting ones."""
        for stretch in stretches(trials, self._expected_s, seed_by_seed=self._seed_by_seed):
            self._queues.setdefault(stretch.shape, deque()).append((self._number, stretch))
            self._number += 1
        self._waiting.update(trial.trial_id for trial in trials)
        self.revise()

    def again(self, trial: TrialSpec) -> None:
        """Queue the trial again, before others of its shape, for example after a lost node."""
        stretch = Stretch(Shape.of(trial), [trial])
        self._queues.setdefault(stretch.shape, deque()).appendleft((-1, stretch))
        self._waiting.add(trial.trial_id)
        self.revise()

    def drop(self, trial: TrialSpec) -> None:
        """Remove a waiting trial, which will not start."""
        queue = self._queues[Shape.of(trial)]
        stretch = next(each for _, each in queue if trial in each.trials)
        self._work -= self._work_of(stretch.shape, trial)
        self._waiting.remove(trial.trial_id)
        self._remove(stretch, trial)

    def take_back(self) -> list[TrialSpec]:
        """Remove and return all waiting trials."""
        waiting = self.waiting()
        self._queues.clear()
        self._waiting.clear()
        self.revise()
        return waiting

    def moved(self, nodes: Sequence[Node]) -> None:
        """Replace the nodes. Trials on nodes that are gone no longer hold anything."""
        before, self._room = self._room.nodes, Occupancy(nodes)
        for trial_id, (placement, until_s) in self._running.items():
            there = placement.moved(before, nodes)
            self._running[trial_id] = (there, until_s)
            self._room.take(there)
        self.revise()

    def left_s(self, now_s: float) -> float:
        """Seconds that all waiting and running trials take if nothing idles; infinite if no duration is known."""
        return self._left_s(now_s) if self._typical_s or not self._waiting else math.inf

    def revise(self) -> None:
        """Take new estimates, or other nodes, into account."""
        nodes, waiting = self._room.nodes, self.waiting()
        self._capacity = sum(node.gpus for node in nodes) or sum(node.cpus for node in nodes) or 1.0
        self._blocked: set[Shape] = set()
        self._first: Stretch | None = None
        self._kept: Reservation | None = None
        self._weights: dict[Shape, float] = {}
        known = [seconds for trial in waiting if (seconds := self._expected_s(trial)) is not None]
        self._typical_s = median(known) if known else 0.0
        self._work = sum(self._work_of(Shape.of(trial), trial) for trial in waiting)
        self._busy, self._busy_until = 0.0, 0.0
        for placement, until_s in self._running.values():
            self._count_running(placement, until_s, 1)
        unbound = (
            (stretch, trial) for queue in self._queues.values() for _, stretch in queue for trial in stretch.trials
        )
        by_length = [
            (seconds, stretch, trial)
            for stretch, trial in unbound
            if trial.timing != "exclusive" and (seconds := self._expected_s(trial)) is not None
        ]
        self._by_length = deque(sorted(by_length, key=lambda each: -each[0]))

    def upcoming(self) -> Upcoming | None:
        """The waiting gangs that will start next, if that takes further processes."""
        if self._first is None:
            return None
        shape, running = self._first.shape, list(self._running.values())
        self._kept = self._kept or reserve(self._room, shape, running)
        waiting = sum(len(stretch.trials) for _, stretch in self._queues[shape])
        return upcoming(self._room, shape, waiting, self._kept, running)

    def _candidates(self, now_s: float) -> Iterator[tuple[Stretch, TrialSpec]]:
        """Candidates to start next: the one with reserved nodes, an urgent one, then shape by shape in order."""
        if self._first:
            yield self._first, self._first.trials[0]
        urgent = self._urgent(now_s)
        if urgent:
            yield urgent
        for _, stretch in sorted((queue[0] for queue in self._queues.values()), key=lambda each: each[0]):
            stretch.open(self._expected_s)
            yield stretch, stretch.trials[0]

    def _urgent(self, now_s: float) -> tuple[Stretch, TrialSpec] | None:
        """The longest trial, if it takes about as long as the rest together; exclusive trials keep their order."""
        while self._by_length and self._by_length[0][2].trial_id not in self._waiting:
            self._by_length.popleft()
        if not self._by_length:
            return None
        longest_s, stretch, trial = self._by_length[0]
        return (stretch, trial) if longest_s * HURRY > self._left_s(now_s) else None

    def _left_s(self, now_s: float) -> float:
        return (self._work + self._busy_until - now_s * self._busy) / self._capacity

    def _try(self, stretch: Stretch, trial: TrialSpec, now_s: float) -> Start | None:
        placement = self._room.place(stretch.shape)
        if placement is None:
            self._blocked.add(stretch.shape)
            self._first = self._first or stretch
            return None
        if self._first and self._first is not stretch:
            self._kept = self._kept or reserve(self._room, self._first.shape, self._running.values())
            if not self._kept.nodes.isdisjoint(placement.nodes):
                trial, without = self._in_time(stretch, trial, self._kept, now_s)
                placement = self._room.place(stretch.shape, without)
        return self._start(stretch, trial, placement, now_s) if placement else None

    def _in_time(
        self, stretch: Stretch, trial: TrialSpec, kept: Reservation, now_s: float
    ) -> tuple[TrialSpec, frozenset[int]]:
        """A trial that ends before the reserved nodes are needed, else the given one, which must avoid them."""
        for each in (trial, stretch.trials[-1]):
            seconds = self._expected_s(each)
            if seconds is not None and now_s + seconds <= kept.from_s < math.inf:
                return each, frozenset()
        return trial, kept.nodes

    def _start(self, stretch: Stretch, trial: TrialSpec, placement: Placement, now_s: float) -> Start:
        if self._first is stretch:
            self._first = self._kept = None
            self._blocked.clear()
        self._work -= self._work_of(stretch.shape, trial)
        self._waiting.remove(trial.trial_id)
        self._remove(stretch, trial)
        expected_s = self._expected_s(trial)
        until_s = math.inf if expected_s is None else now_s + expected_s
        self._running[trial.trial_id] = (placement, until_s)
        self._room.take(placement)
        self._count_running(placement, until_s, 1)
        return Start(trial=trial, placement=placement, nodes=tuple(self._room.nodes[at] for at in placement.nodes))

    def _remove(self, stretch: Stretch, trial: TrialSpec) -> None:
        stretch.remove(trial)
        if stretch.trials:
            return
        if self._first is stretch:
            self._first = self._kept = None
        queue = self._queues[stretch.shape]
        queue.remove(next(each for each in queue if each[1] is stretch))
        if not queue:
            del self._queues[stretch.shape]
            self._blocked.discard(stretch.shape)

    def _work_of(self, shape: Shape, trial: TrialSpec) -> float:
        seconds = self._expected_s(trial)
        return self._weight(shape) * (self._typical_s if seconds is None else seconds)

    def _weight(self, shape: Shape) -> float:
        if shape not in self._weights:
            self._weights[shape] = weight(shape, self._room.nodes)
        return self._weights[shape]

    def _count_running(self, placement: Placement, until_s: float, times: int) -> None:
        """Maintain Σ held and Σ held × end, which give the remaining work at any time."""
        if placement.held and until_s < math.inf:
            held = self._weight(placement.shape) * times
            self._busy += held
            self._busy_until += held * until_s
