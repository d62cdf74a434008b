"""Decides which trial starts next and where, given what has ended. Uses no clock and no processes, only values.

The order in which trials start, before it is known when room becomes free.

Reserves nodes for the first gang that waits.

Gangs whose start is foreseeable and needs processes that are not there yet.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from orchestrator.schedule.cluster import Node, Occupancy, Placement, Shape, weight
from sweeps.trial import TrialSpec

Expected = Callable[[TrialSpec], float | None]
"""Seconds that a trial is expected to take; None if unknown."""


class TrialBatch:
    """Trials of one shape and one seed; they run one after another, longest first, to keep their workers warm."""

    def __init__(self, shape: Shape, trials: Iterable[TrialSpec]) -> None:
        self.shape = shape
        self.trials = deque(trials)
        self._opened = False

    def open(self, expected_s: Expected) -> None:
        """Begin this stretch: on the first call, sort it by what is known so far."""
        if not self._opened:
            self.sort(expected_s)
        self._opened = True

    def remove(self, trial: TrialSpec) -> None:
        """Remove a trial that has started; fast at either end."""
        if self.trials[-1] is trial:
            self.trials.pop()
        else:
            self.trials.remove(trial)

    def sort(self, expected_s: Expected) -> None:
        """Sort longest first, unknown durations before all, because they may be longer; otherwise keep the order."""
        longest_first = sorted(self.trials, key=lambda trial: -_or_ever(expected_s(trial)))
        self.trials = deque(longest_first)


def stretches(trials: Sequence[TrialSpec], expected_s: Expected, *, seed_by_seed: bool = False) -> list[TrialBatch]:
    """The trials as stretches, in the order in which they run.

    Going through all cells before the next seed interleaves repeats (A B A' B'), so that a machine's drift hits all
    cells alike. For trials that have whole nodes to themselves (`exclusive`) nothing else matters: the order is seed
    by seed, within a seed shape by shape, and turns around at every seed (large to small, small to large, …), which
    halves the number of shape changes. Otherwise packing comes first: large gangs before small ones, because small ones
    fill the gaps that large ones leave, and seed by seed within each shape. If the sweep may end
    early (`seed_by_seed`), all go seed by seed, so that repeats are missing then rather than the small gangs with
    which the large ones are compared.
    """
    in_turns = [trial for trial in trials if seed_by_seed or trial.timing == "exclusive"]
    others = [trial for trial in trials if not seed_by_seed and trial.timing != "exclusive"]
    found: list[TrialBatch] = []
    for turn, (_, repeat) in enumerate(groupby(sorted(in_turns, key=_seed), key=_seed)):
        found += _by_shape(repeat, large_first=turn % 2 == 0)
    for stretch in _by_shape(others, large_first=True):
        seeds = groupby(sorted(stretch.trials, key=_seed), key=_seed)
        found += [TrialBatch(stretch.shape, repeat) for _, repeat in seeds]
    for stretch in found:
        stretch.sort(expected_s)
    return found


def in_order(
    trials: Sequence[TrialSpec], expected_s: Expected = lambda trial: None, *, seed_by_seed: bool = False
) -> list[TrialSpec]:
    """The trials in the order in which they start if only one runs at a time."""
    return [trial for stretch in stretches(trials, expected_s, seed_by_seed=seed_by_seed) for trial in stretch.trials]


def _by_shape(trials: Iterable[TrialSpec], *, large_first: bool) -> list[TrialBatch]:
    alike: dict[Shape, list[TrialSpec]] = {}
    for trial in trials:
        alike.setdefault(Shape.of(trial), []).append(trial)
    by_size = sorted(alike.items(), key=lambda item: item[0].size, reverse=large_first)
    return [TrialBatch(shape, same) for shape, same in by_size]


def _seed(trial: TrialSpec) -> int:
    return trial.seed


def _or_ever(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """The reserved nodes, and when they are needed, on the clock of the expected ends."""

    nodes: frozenset[int]
    from_s: float


def reserve(room: Occupancy, shape: Shape, running: Iterable[tuple[Placement, float]]) -> Reservation:
    """Reserve the nodes expected to have room for the gang first; `running` has the expected end of each placement.

    A gang that fits on one node waits for one; one that does not fit on all of them, for none. If ends are
    unknown, `from_s` is infinite.
    """
    leaving: dict[int, list[tuple[float, Placement]]] = {}
    for placement, until_s in running:
        for node in set(placement.nodes):
            leaving.setdefault(node, []).append((until_s, placement))
    chosen: set[int] = set()
    from_s = -math.inf
    for part in shape.gang.parts() if room.could_hold(shape) else ():
        one = Shape(gang=part, timing=shape.timing)
        found = _on_one(room, one, leaving) if room.fits_one_node(one) else _on_several(room, one, leaving)
        chosen.update(node for _, node in found)
        from_s = max(from_s, *(free_s for free_s, _ in found))
    return Reservation(nodes=frozenset(chosen), from_s=from_s)


def _on_one(
    room: Occupancy, shape: Shape, leaving: dict[int, list[tuple[float, Placement]]]
) -> list[tuple[float, int]]:
    nodes = range(len(room.nodes))
    able = [node for node in nodes if room.ranks_when_empty(shape, node) >= shape.gang.ranks]
    return [min((_free_s(room, shape, node, leaving.get(node, [])), node) for node in able)]


def _on_several(
    room: Occupancy, shape: Shape, leaving: dict[int, list[tuple[float, Placement]]]
) -> list[tuple[float, int]]:
    """The nodes that become empty first, until together they hold the gang."""
    chosen, ranks = [], 0
    emptied = [
        (max((until_s for until_s, _ in leaving.get(node, ())), default=-math.inf), node)
        for node in range(len(room.nodes))
    ]
    for free_s, node in sorted(emptied):
        room_there = room.ranks_when_empty(shape, node)
        if room_there and ranks < shape.gang.ranks:
            chosen.append((free_s, node))
            ranks += room_there
    return chosen


def _free_s(room: Occupancy, shape: Shape, node: int, leaving: Sequence[tuple[float, Placement]]) -> float:
    """When the node has room for the whole gang if its trials end as expected."""
    by_end = sorted(leaving, key=lambda each: each[0])
    for count, (until_s, _) in enumerate(by_end, start=1):
        if room.ranks_without(shape, node, [placement for _, placement in by_end[:count]]) >= shape.gang.ranks:
            return until_s
    return -math.inf


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
        self._queues: dict[Shape, deque[tuple[int, TrialBatch]]] = {}
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
        stretch = TrialBatch(Shape.of(trial), [trial])
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
        self._first: TrialBatch | None = None
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

    def _candidates(self, now_s: float) -> Iterator[tuple[TrialBatch, TrialSpec]]:
        """Candidates to start next: the one with reserved nodes, an urgent one, then shape by shape in order."""
        if self._first:
            yield self._first, self._first.trials[0]
        urgent = self._urgent(now_s)
        if urgent:
            yield urgent
        for _, stretch in sorted((queue[0] for queue in self._queues.values()), key=lambda each: each[0]):
            stretch.open(self._expected_s)
            yield stretch, stretch.trials[0]

    def _urgent(self, now_s: float) -> tuple[TrialBatch, TrialSpec] | None:
        """The longest trial, if it takes about as long as the rest together; exclusive trials keep their order."""
        while self._by_length and self._by_length[0][2].trial_id not in self._waiting:
            self._by_length.popleft()
        if not self._by_length:
            return None
        longest_s, stretch, trial = self._by_length[0]
        return (stretch, trial) if longest_s * HURRY > self._left_s(now_s) else None

    def _left_s(self, now_s: float) -> float:
        return (self._work + self._busy_until - now_s * self._busy) / self._capacity

    def _try(self, stretch: TrialBatch, trial: TrialSpec, now_s: float) -> Start | None:
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
        self, stretch: TrialBatch, trial: TrialSpec, kept: Reservation, now_s: float
    ) -> tuple[TrialSpec, frozenset[int]]:
        """A trial that ends before the reserved nodes are needed, else the given one, which must avoid them."""
        for each in (trial, stretch.trials[-1]):
            seconds = self._expected_s(each)
            if seconds is not None and now_s + seconds <= kept.from_s < math.inf:
                return each, frozenset()
        return trial, kept.nodes

    def _start(self, stretch: TrialBatch, trial: TrialSpec, placement: Placement, now_s: float) -> Start:
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

    def _remove(self, stretch: TrialBatch, trial: TrialSpec) -> None:
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
