"""Simulates a schedule without running it: when each trial would start and end, and the GPU-hours of all."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Sequence
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
