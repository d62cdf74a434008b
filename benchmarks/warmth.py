"""Which trials of a schedule reuse processes of an equal gang, and which start a gang."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

from orchestrator.schedule.cluster import UNITS, Footprint, Node, Placement
from orchestrator.schedule.simulation import ScheduledTrial

Place = tuple[Footprint, tuple[int, ...]]
"""A footprint, and the node of each of its ranks: who has the same may take one another's processes."""


def cold_starts(stays: Sequence[ScheduledTrial], nodes: Sequence[Node]) -> list[ScheduledTrial]:
    """Return the trials that find no idle gang of their footprint; gangs that block their room are ended, the largest
    first.

    `stays` are in the order of their starts.
    """
    cold: list[ScheduledTrial] = []
    ends: list[tuple[float, int]] = []
    idle: dict[Place, list[Placement]] = {}
    bare = [int(node.gpus or node.cpus) * UNITS for node in nodes]
    for index, stay in enumerate(stays):
        while ends and ends[0][0] <= stay.start_s:
            over = stays[heapq.heappop(ends)[1]].placement
            idle.setdefault(_place(over), []).append(over)
        if idle.get(_place(stay.placement)):
            idle[_place(stay.placement)].pop()
        else:
            cold.append(stay)
            _make_room(_holds(stay.placement), bare, idle)
        heapq.heappush(ends, (stay.end_s, index))
    return cold


def _make_room(needs: Counter[int], bare: list[int], idle: dict[Place, list[Placement]]) -> None:
    for node, units in needs.items():
        while bare[node] < units:
            there = [place for place, gangs in idle.items() if gangs and node in place[1]]
            gone = idle[max(there, key=lambda place: place[0].size)].pop()
            for freed_node, freed in _holds(gone).items():
                bare[freed_node] += freed
        bare[node] -= units


def _place(placement: Placement) -> Place:
    return placement.footprint, tuple(sorted(placement.nodes))


def _holds(placement: Placement) -> Counter[int]:
    """Return the held resources by node: ten-thousandths of GPUs, or of cores if it holds no GPU."""
    on_gpus = any(held.gpus for held in placement.held)
    held = Counter[int]()
    for share in placement.held:
        held[share.node] += sum(units for _, units in share.gpus) if on_gpus else share.cpus
    return held
