"""Reserves nodes for the first gang that waits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.scheduling.occupancy import Occupancy
from orchestrator.scheduling.placement import Placement, Shape


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
