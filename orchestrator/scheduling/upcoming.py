"""Gangs whose start is foreseeable and needs processes that are not there yet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.scheduling.node import Node
from orchestrator.scheduling.occupancy import Occupancy
from orchestrator.scheduling.placement import Placement, Shape
from orchestrator.scheduling.reservation import Reservation


@dataclass(frozen=True, kw_only=True)
class Upcoming:
    """Gangs of one shape that will start on these nodes once others have left."""

    shape: Shape
    gangs: int
    nodes: tuple[Node, ...]
    beside: frozenset[str]
    """The timing mode of the gangs on the nodes now."""

    @property
    def ranks_a_node(self) -> int:
        """The largest number of processes that each node needs."""
        return math.ceil(self.gangs * self.shape.gang.ranks / len(self.nodes))


def upcoming(
    room: Occupancy,
    shape: Shape,
    waiting: int,
    reserved: Reservation,
    running: Iterable[tuple[Placement, float]],
) -> Upcoming | None:
    """The gangs of the first waiting shape, of which `waiting` trials wait and for which nodes are `reserved`.

    None if a gang of the same shape leaves first: its processes serve the next trial.
    """
    nodes = sorted(reserved.nodes)
    there = [(until_s, placement) for placement, until_s in running if not set(nodes).isdisjoint(placement.nodes)]
    first_s = min((until_s for until_s, _ in there), default=math.inf)
    if not there or any(until_s == first_s and placement.shape == shape for until_s, placement in there):
        return None
    leaving = [placement for until_s, placement in there if until_s <= reserved.from_s]
    as_one = replace(shape, gang=replace(shape.gang, ranks=shape.gang.ranks * waiting))
    gangs = 1 if len(nodes) > 1 else room.ranks_without(as_one, nodes[0], leaving) // shape.gang.ranks
    return Upcoming(
        shape=shape,
        gangs=max(1, gangs),
        nodes=tuple(room.nodes[node] for node in nodes),
        beside=frozenset(placement.shape.timing for _, placement in there),
    )
