"""Simulates a schedule without running it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.scheduling.node import Node
from orchestrator.scheduling.order import Expected
from orchestrator.scheduling.placement import Placement, Shape, weight
from orchestrator.scheduling.scheduler import Scheduler
from sweeps.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Stay:
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
    *,
    seed_by_seed: bool = False,
) -> list[Stay]:
    """The stays in order of their starts if trials take `takes_s` instead of the expected `expected_s`.

    Every trial must fit the nodes. `seed_by_seed`: see `orchestrator.scheduling.order.stretches`.
    """
    scheduler = Scheduler(trials, nodes, expected_s, seed_by_seed=seed_by_seed)
    stays: list[Stay] = []
    ends: list[tuple[float, int]] = []
    now_s = 0.0
    while scheduler or ends:
        while start := scheduler.next(now_s):
            end_s = now_s + takes_s(start.trial)
            heapq.heappush(ends, (end_s, len(stays)))
            stays.append(Stay(trial=start.trial, placement=start.placement, start_s=now_s, end_s=end_s))
        now_s, index = heapq.heappop(ends)
        scheduler.ended(stays[index].trial.trial_id)
    return stays


def makespan_s(stays: Sequence[Stay]) -> float:
    """From the first start to the last end."""
    return max((stay.end_s for stay in stays), default=0.0)


def lower_bound_s(trials: Sequence[TrialSpec], nodes: Sequence[Node], takes_s: Callable[[TrialSpec], float]) -> float:
    """A lower bound for any order: max(Σ GPU-seconds / GPUs, longest trial); counts cores if there are no GPUs."""
    have = sum(node.gpus for node in nodes) or sum(node.cpus for node in nodes)
    weights = {shape: weight(shape, nodes) for shape in set(map(Shape.of, trials))}
    work = sum(weights[Shape.of(trial)] * takes_s(trial) for trial in trials)
    return max(work / have, max(map(takes_s, trials), default=0.0))
