"""Simulates a schedule without running it: when each trial would start and end, and the GPU-hours of all."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    def shares_s_of(self, trials: Sequence[TrialSpec]) -> dict[str, float | None]:
        """Return by how many seconds each trial makes the schedule longer, by its id; None if no duration is known.

        A trial that is not in the schedule, because it waits for a node, counts as the mean of the others.
        """
        total_s = sum(place.end_s - place.start_s for place in self.schedule)
        if not total_s or self.makespan_s is None:
            return dict.fromkeys((trial.trial_id for trial in trials), None)
        at_once = total_s / self.makespan_s
        shares_s = {place.trial.trial_id: (place.end_s - place.start_s) / at_once for place in self.schedule}
        mean_s = statistics.fmean(shares_s.values())
        return {trial.trial_id: shares_s.get(trial.trial_id, mean_s) for trial in trials}

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the trials whose duration is known."""
        known = ((place.trial.gpus_held, self.expected_s(place.trial)) for place in self.schedule)
        return sum(gpus * seconds for gpus, seconds in known if seconds is not None) / 3600


_BELIEVED = 3
"""How many trials the plan's estimate counts as, beside those that have ended: the first of them start processes."""


_START_S = 15.0  # of the first trial's processes, which says nothing about the pace of the others


class TimeLeft:
    """Estimates the seconds until the last trial ends: those that the plan foresees, at the pace of the trials so far.

    Where the plan foresees none, all trials count alike.
    """

    def __init__(self) -> None:
        self._shares_s: dict[str, float] = {}
        self._typical_s, self._is_foreseen = 1.0, False
        self._open_s = self._done_s = self._took_s = 0.0  # `open`: of the trials that have not ended
        self._is_under_way = False
        self._last_s: float | None = None  # when the last trial has ended, or the first one has started

    def queued(self, shares_s: Mapping[str, float | None]) -> None:
        """Count trials that are to run, by the shares of a timetable."""
        known = [share_s for share_s in shares_s.values() if share_s is not None]
        # The first trials tell whether shares are seconds or numbers of trials.
        if not self._shares_s and known:
            self._typical_s, self._is_foreseen = statistics.fmean(known), True
            self._done_s = self._took_s = _BELIEVED * self._typical_s
        for trial_id, share_s in shares_s.items():
            self._shares_s[trial_id] = share_s if share_s is not None and self._is_foreseen else self._typical_s
            self._open_s += self._shares_s[trial_id]

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
            self._took_s += max(min(share_s, now_s - self._last_s), self._paced_s(now_s))
        self._last_s, self._is_under_way = now_s, True

    def left_s(self, now_s: float, running: Iterable[str], again: Iterable[str] = ()) -> float | None:
        """Return the estimate while these trials run; None if neither the plan nor two ended trials tell.

        The trials `again` will be timed again, and are not queued yet.
        """
        open_s = self._open_s + sum(map(self._share_s, again))
        if not open_s:
            return 0.0
        if not self._done_s:
            return None
        running_s = sum(map(self._share_s, running))
        # Running trials that are overdue show that the pace is slower.
        pace = max(self._took_s / self._done_s, (self._took_s + self._paced_s(now_s)) / (self._done_s + running_s))
        since_s = 0.0 if self._last_s is None else now_s - self._last_s
        return max(0.0, pace * open_s - since_s, pace * (open_s - running_s))

    def _paced_s(self, now_s: float) -> float:
        """Return the seconds since the last end; those since the first start without a start of processes."""
        if self._last_s is None:
            return 0.0
        return now_s - self._last_s if self._is_under_way else max(0.0, now_s - self._last_s - _START_S)

    def _share_s(self, trial_id: str) -> float:
        return self._shares_s.get(trial_id, 0.0)
