"""Simulates a schedule without running it: when each trial would start and end, and the GPU-hours of all."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.schedule.cluster import Node, Placement
from orchestrator.schedule.scheduler import Expected, Scheduler
from sweeps.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class ScheduledTrial:
    """A trial in its place and time, in seconds from the sweep's start."""

    trial: TrialSpec
    placement: Placement
    start_s: float
    end_s: float


def simulate(
    trials: Sequence[TrialSpec],
    nodes: Sequence[Node],
    expected_s: Expected,
    takes_s: Callable[[TrialSpec], float],
) -> list[ScheduledTrial]:
    """Return the trials in order of their starts if they take `takes_s` instead of the expected `expected_s`.

    Every trial must fit the nodes.
    """
    scheduler = Scheduler(trials, nodes, expected_s)
    schedule: list[ScheduledTrial] = []
    ends: list[tuple[float, int]] = []
    now_s = 0.0
    while scheduler or ends:
        while start := scheduler.next(now_s):
            end_s = now_s + takes_s(start.trial)
            heapq.heappush(ends, (end_s, len(schedule)))
            schedule.append(ScheduledTrial(trial=start.trial, placement=start.placement, start_s=now_s, end_s=end_s))
        now_s, index = heapq.heappop(ends)
        scheduler.ended(schedule[index].trial.trial_id)
    return schedule


def makespan_s(schedule: Sequence[ScheduledTrial]) -> float:
    """Return the seconds from the first start to the last end."""
    return max((place.end_s for place in schedule), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """The schedule of a plan, simulated with the known durations of its trials."""

    schedule: Sequence[ScheduledTrial]  # in the order of starting; in seconds if any duration is known
    expected_s: Expected

    @staticmethod
    def of(trials: Sequence[TrialSpec], nodes: Sequence[Node], expected_s: Expected) -> Timetable:
        """Return the timetable; a trial of unknown duration is assumed to take the median of the known ones."""
        known = [seconds for trial in trials if (seconds := expected_s(trial)) is not None]
        # Without any known duration only the order has a meaning, which equal durations show.
        typical_s = statistics.median(known) if known else 1.0

        def takes_s(trial: TrialSpec) -> float:
            seconds = expected_s(trial)
            return typical_s if seconds is None else seconds

        schedule = simulate(trials, nodes, expected_s, takes_s)
        return Timetable(schedule=schedule, expected_s=expected_s)

    @property
    def unknown(self) -> int:
        """The number of trials of unknown duration."""
        return sum(self.expected_s(place.trial) is None for place in self.schedule)

    @property
    def makespan_s(self) -> float | None:
        """Seconds from the first start to the last end; None if no duration is known."""
        return None if self.schedule and self.unknown == len(self.schedule) else makespan_s(self.schedule)

    def shares_s_of(self, trials: Sequence[TrialSpec]) -> dict[str, float]:
        """Return by how many seconds each trial makes the schedule longer, by its id; {} if no duration is known.

        A trial that is not in the schedule, because it waits for a node, counts as the mean of the others.
        """
        total_s = sum(place.end_s - place.start_s for place in self.schedule)
        if not total_s or self.makespan_s is None:
            return {}
        at_once = total_s / self.makespan_s
        shares_s = {place.trial.trial_id: (place.end_s - place.start_s) / at_once for place in self.schedule}
        mean_s = statistics.fmean(shares_s.values())
        return {trial.trial_id: shares_s.get(trial.trial_id, mean_s) for trial in trials}

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the trials whose duration is known."""
        known = ((place.trial.gpus_held, self.expected_s(place.trial)) for place in self.schedule)
        return sum(gpus * seconds for gpus, seconds in known if seconds is not None) / 3600


def time_left_s(took_s: Sequence[float], running_s: Sequence[float], waiting: int, at_once: float) -> float | None:
    """Estimate the seconds until the last trial ends, if all take the median of those that have ended.

    `running_s` says how long each running trial has run, `at_once` how many run at a time. None until two trials have
    ended: most of the first one's time may be the start of its processes.
    """
    if not waiting and not running_s:
        return 0.0
    if len(took_s) < 2:
        return None
    typical_s = statistics.median_low(took_s)
    current_s = max((max(0.0, typical_s - seconds) for seconds in running_s), default=0.0)
    return current_s + waiting * typical_s / at_once


_BELIEVED = 3
"""How many trials the plan's estimate counts as, beside those that have ended: the first of them start processes."""


class TimeLeft:
    """Estimates the seconds until the last trial ends: those that the plan foresees, at the pace of the trials so far.

    Where the plan foresees none, all trials count alike.
    """

    def __init__(self, trial_ids: Iterable[str], shares_s: Mapping[str, float]) -> None:
        """`trial_ids` are to run; `shares_s` are those of a timetable."""
        self._is_foreseen = bool(shares_s)
        self._shares_s = dict(shares_s or dict.fromkeys(trial_ids, 1.0))
        self._typical_s = statistics.fmean(shares_s.values()) if shares_s else 1.0
        self._open_s = math.fsum(self._shares_s.values())  # of the trials that have not ended
        self._done_s = self._took_s = _BELIEVED * self._typical_s if shares_s else 0.0
        self._is_under_way = False
        self._last_s: float | None = None  # when the last trial has ended, or the first one has started

    def added(self, trial_ids: Collection[str]) -> None:
        """Count further trials."""
        self._open_s += len(trial_ids) * self._typical_s
        self._shares_s.update(dict.fromkeys(trial_ids, self._typical_s))

    def dequeued(self, trial_ids: Iterable[str]) -> None:
        """Count trials no longer that will not run."""
        self._open_s = max(0.0, self._open_s - sum(map(self._share_s, trial_ids)))

    def started(self, now_s: float) -> None:
        """Count the time from the first start on."""
        self._last_s = now_s if self._last_s is None else self._last_s

    def ended(self, trial_id: str, now_s: float) -> None:
        """Count an ended trial; a probe is none of those that were planned."""
        share_s = self._share_s(trial_id)
        self._open_s = max(0.0, self._open_s - share_s)
        # Without a plan, an unknown part of the first trial's time is the start of its processes.
        if self._last_s is not None and share_s and (self._is_foreseen or self._is_under_way):
            self._done_s += share_s
            self._took_s += now_s - self._last_s
        self._last_s, self._is_under_way = now_s, True

    def left_s(self, now_s: float, running: Iterable[str]) -> float | None:
        """Return the estimate while these trials run; None if neither the plan nor two ended trials tell."""
        if not self._open_s:
            return 0.0
        if not self._done_s:
            return None
        since_s = 0.0 if self._last_s is None else now_s - self._last_s
        running_s = sum(map(self._share_s, running))
        # Running trials that are overdue show that the pace is slower.
        pace = max(self._took_s / self._done_s, (self._took_s + since_s) / (self._done_s + running_s))
        return max(0.0, pace * self._open_s - since_s, pace * (self._open_s - running_s))

    def _share_s(self, trial_id: str) -> float:
        return self._shares_s.get(trial_id, 0.0)
