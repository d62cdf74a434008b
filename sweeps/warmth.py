"""Which trials of a schedule find the processes of a gang like their own, and for which ones gangs have to start."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

from sweeps.feasibility import Node
from sweeps.placement import UNITS, Placement
from sweeps.simulation import Stay

Place = tuple[tuple[int, int], ...]
"""(node, ten-thousandths of GPUs there, or cores where it holds no GPU), node by node."""


def cold_starts(stays: Sequence[Stay], nodes: Sequence[Node]) -> list[Stay]:
    """The trials that find no such gang; whoever needs the room of one that idles ends it, the largest first.

    `stays` are in the order of their starts.
    """
    cold: list[Stay] = []
    ends: list[tuple[float, int]] = []
    idle: list[Placement] = []
    bare = [int(node.gpus or node.cpus) * UNITS for node in nodes]
    for index, stay in enumerate(stays):
        while ends and ends[0][0] <= stay.start_s:
            idle.append(stays[heapq.heappop(ends)[1]].placement)
        alike = next((each for each in idle if _place(each) == _place(stay.placement)), None)
        if alike:
            idle.remove(alike)
        else:
            cold.append(stay)
            _make_room(_holds(stay.placement), bare, idle)
        heapq.heappush(ends, (stay.end_s, index))
    return cold


def _make_room(needs: Counter[int], bare: list[int], idle: list[Placement]) -> None:
    for node, units in needs.items():
        while bare[node] < units:
            gone = max((each for each in idle if node in each.nodes), key=lambda each: each.shape.size)
            idle.remove(gone)
            for there, freed in _holds(gone).items():
                bare[there] += freed
        bare[node] -= units


def _place(placement: Placement) -> object:
    return placement.shape, sorted(placement.nodes)


def _holds(placement: Placement) -> Counter[int]:
    on_gpus = any(held.gpus for held in placement.held)
    held = Counter[int]()
    for each in placement.held:
        held[each.node] += sum(units for _, units in each.gpus) if on_gpus else each.cpus
    return held
