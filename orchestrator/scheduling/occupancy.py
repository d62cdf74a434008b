"""Tracks what is free on every node, who may share a node, and where a gang goes: one node before several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from orchestrator.scheduling.node import Node, of_type, why_infeasible
from orchestrator.scheduling.placement import UNITS, Held, Placement, Shape, devices, units_of


class _Free(NamedTuple):
    """What is free on a node; nodes with equal values are interchangeable for every gang."""

    spare: int
    """Over all GPUs."""
    cpus: int
    gpus: tuple[int, ...]
    """Of each GPU, the emptiest first."""
    mode: str
    """The timing mode of the gangs on the node; empty if there are none."""
    gpu_type: str


class Occupancy:
    """What is free on each node.

    A node is in one timing mode at a time: an `exclusive` gang is alone on its nodes, `device` gangs share a node
    but no device, and `shared` gangs share devices, so that gangs without valid timings cannot spoil others' timings.
    A gang that fits on one node never spans several, even if it has to wait: that would be a different
    measurement. One that fits on no single node takes the emptiest nodes.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self._cpus = [units_of(node.cpus) for node in nodes]
        self._gpus = [[UNITS] * int(node.gpus) for node in nodes]
        self._tenants: list[list[Placement]] = [[] for _ in nodes]
        self._free = [self._look(index) for index in range(len(nodes))]
        self._empty = tuple(self._free)
        self._alike: dict[_Free, dict[int, None]] = {}
        for index, free in enumerate(self._free):
            self._alike.setdefault(free, {})[index] = None
        self._rooms: dict[Shape, dict[_Free, int]] = {}
        self._on_one: dict[Shape, bool] = {}

    def place(self, shape: Shape, without: Set[int] = frozenset()) -> Placement | None:
        """Where the gang may start now, not using these nodes; None if it has to wait. Changes nothing."""
        chosen: list[tuple[int, int]] = []
        for part in shape.gang.parts():
            found = self._choose(Shape(gang=part, timing=shape.timing), without)
            if found is None:
                return None
            chosen += found
        return self._fill(shape, chosen)

    def take(self, placement: Placement) -> None:
        """Occupy the gang's placement."""
        for held in placement.held:
            self._cpus[held.node] -= held.cpus
            for gpu, units in held.gpus:
                self._gpus[held.node][gpu] -= units
        for node in set(placement.nodes):
            self._tenants[node].append(placement)
            self._refresh(node)

    def release(self, placement: Placement) -> None:
        """Free the gang's placement."""
        for held in placement.held:
            self._cpus[held.node] += held.cpus
            for gpu, units in held.gpus:
                self._gpus[held.node][gpu] += units
        for node in set(placement.nodes):
            self._tenants[node].remove(placement)
            self._refresh(node)

    def tenants(self, node: int) -> Sequence[Placement]:
        """The gangs on the node."""
        return self._tenants[node]

    def ranks_when_empty(self, shape: Shape, node: int) -> int:
        """How many of the gang's ranks fit on the node when it is empty."""
        return self._room(shape, self._empty[node])

    def ranks_without(self, shape: Shape, node: int, leaving: Sequence[Placement]) -> int:
        """How many of the gang's ranks would fit on the node without these placements."""
        cpus, gpus = self._cpus[node], list(self._gpus[node])
        for held in (held for placement in leaving for held in placement.held if held.node == node):
            cpus += held.cpus
            for gpu, units in held.gpus:
                gpus[gpu] += units
        staying = [each for each in self._tenants[node] if all(each is not gone for gone in leaving)]
        mode = staying[0].shape.timing if staying else ""
        gpus.sort(reverse=True)
        return _ranks(shape, _Free(sum(gpus), cpus, tuple(gpus), mode, self.nodes[node].gpu_type))

    def could_hold(self, shape: Shape) -> bool:
        """Whether the gang fits on all nodes together when they are empty."""
        return not why_infeasible(shape.gang, self.nodes)

    def fits_one_node(self, shape: Shape) -> bool:
        """Whether any single node could hold the whole gang."""
        if shape not in self._on_one:
            self._on_one[shape] = any(self._room(shape, free) >= shape.gang.ranks for free in set(self._empty))
        return self._on_one[shape]

    def _choose(self, shape: Shape, without: Set[int]) -> list[tuple[int, int]] | None:
        """(node, ranks on it) for a gang of one type of GPU."""
        ranks, known = shape.gang.ranks, self._rooms.setdefault(shape, {})
        rooms = [(known[free] if free in known else self._room(shape, free), free) for free in self._alike]
        if self.fits_one_node(shape):
            fullest = sorted(free for room, free in rooms if room >= ranks)
            nodes = (node for free in fullest for node in self._latest(free, without))
            return next(([(node, ranks)] for node in nodes), None)
        chosen: list[tuple[int, int]] = []
        for room, free in sorted((pair for pair in rooms if pair[0]), reverse=True):
            for node in self._latest(free, without):
                chosen.append((node, min(room, ranks)))
                ranks -= chosen[-1][1]
                if not ranks:
                    return chosen
        return None

    def _latest(self, free: _Free, without: Set[int]) -> Iterator[int]:
        """The nodes in this state, most recently changed first: their processes are warm."""
        return (node for node in reversed(self._alike[free]) if node not in without)

    def _fill(self, shape: Shape, chosen: Iterable[tuple[int, int]]) -> Placement:
        gang, held = shape.gang, []
        for node, ranks in chosen:
            if shape.timing == "exclusive":  # the first of its ranks there holds the whole node
                everything = tuple((gpu, units) for gpu, units in enumerate(self._gpus[node]))
                held += [Held(node, self._cpus[node], everything), *[Held(node, 0, ())] * (ranks - 1)]
                continue
            gpus = list(self._gpus[node])
            for _ in range(ranks):
                held.append(Held(node, gang.cpus_per_rank * UNITS, tuple(_take(gpus, devices(shape)))))
        return Placement(shape=shape, held=tuple(held))

    def _room(self, shape: Shape, free: _Free) -> int:
        known = self._rooms.setdefault(shape, {})
        if free not in known:
            known[free] = _ranks(shape, free)
        return known[free]

    def _look(self, node: int) -> _Free:
        tenants = self._tenants[node]
        mode = tenants[0].shape.timing if tenants else ""
        gpus = tuple(sorted(self._gpus[node], reverse=True))
        return _Free(sum(gpus), self._cpus[node], gpus, mode, self.nodes[node].gpu_type)

    def _refresh(self, node: int) -> None:
        before = self._alike[self._free[node]]
        del before[node]
        if not before:
            del self._alike[self._free[node]]
        self._free[node] = self._look(node)
        self._alike.setdefault(self._free[node], {})[node] = None


def _ranks(shape: Shape, free: _Free) -> int:
    """How many of the gang's ranks fit into what is free."""
    gang = shape.gang
    if free.mode and (shape.timing == "exclusive" or free.mode != shape.timing):
        return 0
    if gang.gpu_types and not of_type(free.gpu_type, gang.gpu_types[0]):
        return 0
    by_cpu = free.cpus // (gang.cpus_per_rank * UNITS) if gang.cpus_per_rank else gang.ranks
    each = devices(shape)
    if not each:
        return min(gang.ranks, by_cpu)
    if each < UNITS:
        return min(gang.ranks, by_cpu, sum(units // each for units in free.gpus))
    return min(gang.ranks, by_cpu, sum(units == UNITS for units in free.gpus) // (each // UNITS))


def _take(free: list[int], units: int) -> Iterator[tuple[int, int]]:
    """Take whole GPUs, or a fraction of the fullest one with enough room, as Ray does."""
    if not units:
        return
    if units < UNITS:
        gpu = min((index for index, left in enumerate(free) if left >= units), key=lambda index: free[index])
        free[gpu] -= units
        yield gpu, units
        return
    for gpu in [index for index, left in enumerate(free) if left == UNITS][: units // UNITS]:
        free[gpu] = 0
        yield gpu, UNITS
