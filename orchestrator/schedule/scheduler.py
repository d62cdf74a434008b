"""Decides which trial starts next and where, given what has ended. Uses no clock and no processes, only values.

`batches` orders the trials before any has run. `Scheduler` follows that order as resources become free; `reserve`
keeps nodes free for the first gang that has to wait, so that neither large gangs nor small ones wait forever.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from statistics import median

from orchestrator.schedule.cluster import Footprint, Node, Occupancy, Placement, weight, why_infeasible
from sweeps.trial import TrialSpec

Expected = Callable[[TrialSpec], float | None]  # seconds that a trial is expected to take; None if unknown


class TrialBatch:
    """Trials of one footprint and one seed; they run one after another to keep their workers warm."""

    def __init__(self, footprint: Footprint, trials: Iterable[TrialSpec], *, backwards: bool = False) -> None:
        """`backwards`: whether they run shortest first instead of longest first."""
        self.footprint = footprint
        self.trials = deque(trials)
        self._backwards = backwards
        self._is_open = False

    def open(self, expected_s: Expected) -> None:
        """Begin this batch: on the first call, sort it by the durations known so far."""
        if not self._is_open:
            self.sort(expected_s)
        self._is_open = True

    def remove(self, trial: TrialSpec) -> None:
        """Remove a trial that has started; fast at either end."""
        # `deque.remove` finds the first one quickly, but would search the whole batch for the last one.
        if self.trials[-1] is trial:
            self.trials.pop()
        else:
            self.trials.remove(trial)

    def sort(self, expected_s: Expected) -> None:
        """Sort longest first, trials of unknown duration before all others; otherwise keep the order."""

        def length_s(trial: TrialSpec) -> float:
            seconds = expected_s(trial)
            # An unknown duration may be the longest.
            return math.inf if seconds is None else seconds

        self.trials = deque(sorted(self.trials, key=length_s, reverse=not self._backwards))


def batches(trials: Sequence[TrialSpec], expected_s: Expected) -> list[TrialBatch]:
    """Return the trials as batches, in the order in which they run: seed by seed, within a seed footprint by footprint.

    The order turns around at every seed (A B C, C B A, A B C, …). Trials of one footprint that run side by side turn
    around only as a group: within it the longest come first.
    """
    ordered: list[TrialBatch] = []
    # Seed by seed: if a sweep ends early, repeats are missing rather than the small gangs with which the large ones are
    # compared. Turning around makes a machine's slow drift affect all cells almost alike, and halves the number of
    # footprint changes.
    seed = attrgetter("seed")
    for turn, (_, repeat) in enumerate(groupby(sorted(trials, key=seed), key=seed)):
        ordered += _by_shape(repeat, backwards=turn % 2 == 1)
    for batch in ordered:
        batch.sort(expected_s)
    return ordered


def _by_shape(trials: Iterable[TrialSpec], *, backwards: bool) -> list[TrialBatch]:
    alike: dict[Footprint, list[TrialSpec]] = {}
    for trial in trials:
        alike.setdefault(Footprint.of(trial), []).append(trial)
    by_size = sorted(alike.items(), key=lambda item: (item[0].timing, item[0].size), reverse=not backwards)
    return [
        TrialBatch(footprint, reversed(same), backwards=True)
        if backwards and footprint.timing == "exclusive"
        else TrialBatch(footprint, same)
        for footprint, same in by_size
    ]


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """The reserved nodes, and when they are needed, on the clock of the expected ends."""

    nodes: frozenset[int]
    from_s: float


def reserve(room: Occupancy, footprint: Footprint, running: Iterable[tuple[Placement, float]]) -> Reservation:
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
    # A gang of several GPU types needs nodes of each: it can start once the last of them is free.
    for part in () if why_infeasible(footprint.gang, room.nodes) else footprint.gang.parts():
        one = Footprint(gang=part, timing=footprint.timing)
        count = room.nodes_of(one)
        nodes = _first_empty(room, one, leaving) if count is None else _first_with_room(room, one, leaving)[:count]
        chosen.update(node for _, node in nodes)
        from_s = max(from_s, *(free_s for free_s, _ in nodes))
    return Reservation(nodes=frozenset(chosen), from_s=from_s)


def _first_with_room(
    room: Occupancy, footprint: Footprint, leaving: dict[int, list[tuple[float, Placement]]]
) -> list[tuple[float, int]]:
    """Return the nodes that can hold their part of the gang, by the time at which trials are expected to leave room."""
    ranks, candidates = footprint.gang.ranks_per_node, []
    for node in range(len(room.nodes)):
        # However many trials leave, this node never has room for its part.
        if room.ranks_when_empty(footprint, node) < ranks:
            continue
        # Room grows only when a trial ends, so that only these times need to be looked at.
        by_end = sorted(leaving.get(node, []), key=lambda leaver: leaver[0])
        gone = [placement for _, placement in by_end]
        ends_s = [-math.inf, *(until_s for until_s, _ in by_end)]
        enough = (
            until_s
            for count, until_s in enumerate(ends_s)
            if room.ranks_without(footprint, node, gone[:count]) >= ranks
        )
        candidates.append((next(enough, -math.inf), node))
    return sorted(candidates)


def _first_empty(
    room: Occupancy, footprint: Footprint, leaving: dict[int, list[tuple[float, Placement]]]
) -> list[tuple[float, int]]:
    """Return the nodes that become empty first, until together they hold the gang."""
    chosen, ranks = [], 0
    emptied = [
        # An empty node has no end to wait for, and comes first.
        (max((until_s for until_s, _ in leaving.get(node, ())), default=-math.inf), node)
        for node in range(len(room.nodes))
    ]
    for free_s, node in sorted(emptied):
        room_there = room.ranks_when_empty(footprint, node)
        if room_there and ranks < footprint.gang.ranks:
            chosen.append((free_s, node))
            ranks += room_there
    return chosen


HURRY = 1.5
"""A trial starts early once the rest of the sweep is expected to take less than this multiple of its duration.

Estimates are off by about a third, and a long trial that starts last delays the whole sweep.
"""

LEAVING_ORDER_S = 20.0
"""What leaving the order costs a trial: processes for another shape or seed start. Two H100 took 12 to 20 s for it."""

LONG_S = 3 * LEAVING_ORDER_S
"""Only longer trials start early: expected durations may include a start, as that of the first trial of processes."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A trial that may start now, and where."""

    trial: TrialSpec
    placement: Placement
    nodes: tuple[Node, ...]  # one entry per rank


class Scheduler:
    """Hands out the trials of a sweep, each as soon as it may start; every trial must fit the nodes.

    It follows the order of `batches`. If a trial has to wait, later ones may start, but nodes are reserved for it:
    only trials expected to end before they are needed may still start there. A trial that would outlast all others
    starts early.
    """

    def __init__(self, trials: Sequence[TrialSpec], nodes: Sequence[Node], expected_s: Expected) -> None:
        self._expected_s = expected_s
        self._batches: dict[Footprint, deque[tuple[int, TrialBatch]]] = {}
        self._number = 0
        self._waiting: set[str] = set()
        self._running: dict[str, tuple[Placement, float]] = {}
        self._room = Occupancy(nodes)
        self.revise()
        self.add(trials)

    def __len__(self) -> int:
        """Return the number of waiting trials."""
        return len(self._waiting)

    def waiting(self) -> list[TrialSpec]:
        """Return the trials that have not started, in order."""
        numbered = sorted(chain.from_iterable(self._batches.values()), key=itemgetter(0))
        return [trial for _, batch in numbered for trial in batch.trials]

    def next(self, now_s: float) -> Start | None:
        """Return the trial to start now; None if all have started, or the rest must wait until one ends.

        `now_s` must come from a monotonic clock.
        """
        # Nothing has changed since every footprint was found to have no room.
        if len(self._blocked) == len(self._batches):
            return None
        for batch, trial in self._candidates(now_s):
            start = None if batch.footprint in self._blocked else self._try(batch, trial, now_s)
            if start is not None:
                return start
        return None

    def ended(self, trial_id: str) -> None:
        """Free the resources of a trial that has ended."""
        placement, until_s = self._running.pop(trial_id)
        self._room.release(placement)
        self._count_running(placement, until_s, -1)
        # There is room again, perhaps for a footprint that had none.
        self._blocked.clear()

    def add(self, trials: Sequence[TrialSpec]) -> None:
        """Append these trials to the waiting ones."""
        if not trials:
            return
        for batch in batches(trials, self._expected_s):
            self._batches.setdefault(batch.footprint, deque()).append((self._number, batch))
            self._number += 1
        self._waiting.update(trial.trial_id for trial in trials)
        self.revise()

    def retry(self, trial: TrialSpec) -> None:
        """Queue the trial again, before others of its footprint."""
        batch = TrialBatch(Footprint.of(trial), [trial])
        # A number below all others: the trial has waited the longest.
        self._batches.setdefault(batch.footprint, deque()).appendleft((-1, batch))
        self._waiting.add(trial.trial_id)
        self.revise()

    def drop(self, trial: TrialSpec) -> None:
        """Remove a waiting trial, which will not start."""
        batch = next(batch for _, batch in self._batches[Footprint.of(trial)] if trial in batch.trials)
        self._take(batch, trial)

    def take_back(self) -> list[TrialSpec]:
        """Remove and return all waiting trials."""
        waiting = self.waiting()
        self._batches.clear()
        self._waiting.clear()
        self.revise()
        return waiting

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """Replace the nodes. Trials on nodes that are gone no longer hold anything."""
        before, self._room = self._room.nodes, Occupancy(nodes)
        for trial_id, (placement, until_s) in self._running.items():
            there = placement.moved(before, nodes)
            self._running[trial_id] = (there, until_s)
            self._room.take(there)
        self.revise()

    def left_s(self, now_s: float) -> float:
        """Return the seconds that all trials take if nothing idles; infinite if no duration is known."""
        # With no estimate at all any number would be a guess, and `HURRY` would act on it.
        if not self._typical_s and self._waiting:
            return math.inf
        return (self._work + self._busy_until - now_s * self._busy) / self._capacity

    def revise(self) -> None:
        """Take new estimates, or other nodes, into account."""
        # Whatever is derived from estimates and nodes is computed anew: it is kept only because `next` is called often.
        nodes, waiting = self._room.nodes, self.waiting()
        self._capacity = sum(node.gpus for node in nodes) or sum(node.cpus for node in nodes) or 1.0
        self._blocked: set[Footprint] = set()
        self._first: TrialBatch | None = None
        self._reserved: Reservation | None = None
        self._weights: dict[Footprint, float] = {}
        # A trial without an estimate counts as a typical one: leaving it out would make the rest seem short.
        known = [seconds for trial in waiting if (seconds := self._expected_s(trial)) is not None]
        self._typical_s = median(known) if known else 0.0
        self._work = sum(self._work_of(Footprint.of(trial), trial) for trial in waiting)
        self._busy, self._busy_until = 0.0, 0.0
        for placement, until_s in self._running.values():
            self._count_running(placement, until_s, 1)
        unbound = ((batch, trial) for queue in self._batches.values() for _, batch in queue for trial in batch.trials)
        by_length = [
            (seconds, batch, trial)
            for batch, trial in unbound
            if trial.timing != "exclusive" and (seconds := self._expected_s(trial)) is not None
        ]
        self._by_length = deque(sorted(by_length, key=lambda entry: -entry[0]))

    def _candidates(self, now_s: float) -> Iterator[tuple[TrialBatch, TrialSpec]]:
        """Yield candidates to start next: the one with reserved nodes, a long one, then by footprint in order."""
        # The trial that has waited the longest is asked first, or smaller ones would take its place again and again.
        if self._first:
            yield self._first, self._first.trials[0]
        # Trials that started in their turn are still in this list: removing them there would search all of it.
        while self._by_length and self._by_length[0][2].trial_id not in self._waiting:
            self._by_length.popleft()
        if self._by_length:  # the longest; exclusive trials are not in it, and keep their order
            longest_s, batch, trial = self._by_length[0]
            if longest_s > LONG_S and longest_s * HURRY > self.left_s(now_s):
                yield batch, trial
        for _, batch in sorted((queue[0] for queue in self._batches.values()), key=itemgetter(0)):
            batch.open(self._expected_s)
            yield batch, batch.trials[0]

    def _try(self, batch: TrialBatch, trial: TrialSpec, now_s: float) -> Start | None:
        """Start the trial, or one of its batch, if it has room and delays no gang with reserved nodes."""
        placement = self._room.place(batch.footprint)
        if placement is None:
            self._blocked.add(batch.footprint)
            # Only the first that has to wait reserves nodes: with more reservations hardly a smaller trial could start.
            self._first = self._first or batch
            return None
        # Another gang waits for nodes: this trial may take them only if it ends before they are needed.
        if self._first and self._first is not batch:
            if self._reserved is None:
                self._reserved = reserve(self._room, self._first.footprint, self._running.values())
            reserved = self._reserved.nodes
            if not reserved.isdisjoint(placement.nodes):
                short = self._short_one(batch, trial, left_s=self._reserved.from_s - now_s)
                if short is None:
                    placement = self._room.place(batch.footprint, reserved)
                trial = short or trial
        return self._start(batch, trial, placement, now_s) if placement else None

    def _short_one(self, batch: TrialBatch, trial: TrialSpec, *, left_s: float) -> TrialSpec | None:
        """Return this trial, or the shortest of its batch, if it is expected to end within these seconds."""
        for candidate in (trial, batch.trials[-1]):
            expected_s = self._expected_s(candidate)
            if expected_s is not None and expected_s + LEAVING_ORDER_S <= left_s < math.inf:
                return candidate
        return None

    def _start(self, batch: TrialBatch, trial: TrialSpec, placement: Placement, now_s: float) -> Start:
        # The gang that had to wait starts, and no nodes are reserved any more.
        if self._first is batch:
            self._first = self._reserved = None
            self._blocked.clear()
        self._take(batch, trial)
        expected_s = self._expected_s(trial)
        until_s = math.inf if expected_s is None else now_s + expected_s
        self._running[trial.trial_id] = (placement, until_s)
        self._room.take(placement)
        self._count_running(placement, until_s, 1)
        return Start(trial=trial, placement=placement, nodes=tuple(self._room.nodes[at] for at in placement.nodes))

    def _take(self, batch: TrialBatch, trial: TrialSpec) -> None:
        """Remove a waiting trial, and its batch if that is empty now."""
        self._work -= self._work_of(batch.footprint, trial)
        self._waiting.remove(trial.trial_id)
        batch.remove(trial)
        if batch.trials:
            return
        if self._first is batch:
            self._first = self._reserved = None
        queue = self._batches[batch.footprint]
        queue.remove(next(entry for entry in queue if entry[1] is batch))
        if not queue:
            del self._batches[batch.footprint]
            self._blocked.discard(batch.footprint)

    def _work_of(self, footprint: Footprint, trial: TrialSpec) -> float:
        seconds = self._expected_s(trial)
        return self._weight(footprint) * (self._typical_s if seconds is None else seconds)

    def _weight(self, footprint: Footprint) -> float:
        if footprint not in self._weights:
            self._weights[footprint] = weight(footprint, self._room.nodes)
        return self._weights[footprint]

    def _count_running(self, placement: Placement, until_s: float, times: int) -> None:
        """Maintain Σ held and Σ held × end, which give the remaining work at any time."""
        if placement.held and until_s < math.inf:
            held = self._weight(placement.footprint) * times
            self._busy += held
            self._busy_until += held * until_s
