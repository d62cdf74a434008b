"""Nodes, and the places of gangs on them: which gangs could fit at all, and what is free on each node now.

`why_infeasible` answers before anything runs; Ray itself would wait forever for a gang that never fits. `Occupancy`
places gangs, and `kept_gang` returns which idle processes a trial may use.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from sweeps.layout import Gang
from sweeps.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node with its total resources."""

    name: str
    cpus: float
    gpus: float
    gpu_type: str = ""
    node_id: str = ""  # Ray's identifier of the node, to distinguish nodes on one host; empty if unknown


def can_run(nodes: Sequence[Node]) -> bool:
    """Return whether any node can run trials; the head of a cluster often has no CPUs for them."""
    return any(node.cpus or node.gpus for node in nodes)


def of_type(gpu_type: str, requested: str) -> bool:
    """Return whether a GPU matches the requested type: `H100` matches `NVIDIA H100 80GB HBM3`.

    Longer names are other types: `A10` does not match `NVIDIA A100`, and `H200` does not match `NVIDIA GH200`.
    """
    return bool(re.search(rf"(?<![a-z0-9]){re.escape(requested.lower())}(?![0-9])", gpu_type.lower()))


def ranks_that_fit(gang: Gang, node: Node) -> int:
    """Return how many of the gang's ranks fit on the empty node; a rank never spans nodes, nor shares a GPU.

    The gang must have at most one GPU type. If its nodes are given, a node has its part of the ranks or none.
    """
    gpus = (UNITS,) * int(node.gpus)
    return _ranks(Footprint(gang=gang, timing="shared"), _Free(sum(gpus), units_of(node.cpus), gpus, "", node.gpu_type))


def why_infeasible(gang: Gang, nodes: Sequence[Node]) -> str:
    """Return one line on what is missing; empty if the nodes could hold the whole gang at once."""
    if not gang.is_divisible:
        types = f" of {len(gang.gpu_types)} types" if len(gang.gpu_types) > 1 else ""
        return f"{gang.ranks} ranks{types} cannot be divided equally among nodes={gang.nodes}"
    for part in gang.parts():
        room = sum(ranks_that_fit(part, node) for node in nodes)
        if room < part.ranks:
            return _lack(part, room, nodes)
    return ""


def _lack(gang: Gang, room: int, nodes: Sequence[Node]) -> str:
    """Return what a gang of one GPU type needs, and what the nodes have."""
    kind = f"{gang.gpu_types[0]} GPU" if gang.gpu_types else "GPU"
    rank = _counted(gang.cpus_per_rank, "CPU")
    rank += f" and {_counted(gang.gpus_per_rank, kind)}" if gang.gpus_per_rank else ""
    rank += " (cluster.gpu_type)" if gang.gpu_types else ""
    kinds = (f"{node.gpu_type or 'unknown'} GPU" if gang.gpu_types and node.gpus else "GPU" for node in nodes)
    described = (
        f"{node.name}: {_counted(node.cpus, 'CPU')}, {_counted(node.gpus, kind)}"
        for node, kind in zip(nodes, kinds, strict=True)
    )
    have = ", ".join(described) or "no nodes"
    spread = f" on {_counted(gang.nodes, 'node')}" if gang.nodes else ""
    # Only a command could use further nodes for what is one rank now.
    hint = "; a command that names {gpus_per_node} may span nodes" if gang.devices_per_rank > 1 == gang.ranks else ""
    ranks = _counted(gang.ranks, "rank")
    return f"needs {ranks} of {rank}{spread}; there is room for {room} ({have}){hint}"


def _counted(count: float, what: str) -> str:
    return f"{count:g} {what}" if count == 1 else f"{count:g} {what}s"


UNITS = 10_000  # Ray counts resources in ten-thousandths; integers do not accumulate rounding errors


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The gang and the timing mode of a trial: trials of one footprint can use one another's place and processes."""

    gang: Gang
    timing: str

    def __post_init__(self) -> None:
        # Cached, since footprints are looked up for every trial.
        object.__setattr__(self, "_hash", hash((self.gang, self.timing)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    @staticmethod
    def of(trial: TrialSpec) -> Footprint:
        """Return the footprint of a trial."""
        return Footprint(gang=trial.gang, timing=trial.timing)

    @property
    def size(self) -> tuple[float, int, int]:
        """A sort key from small to large."""
        return (self.gang.gpus, self.gang.ranks, self.gang.cpus_per_rank)


class Held(NamedTuple):
    """The resources that one rank holds on a node."""

    node: int
    cpus: int
    gpus: tuple[tuple[int, int], ...]  # (index of the GPU, ten-thousandths of it)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A gang in its place: what each rank holds, rank by rank."""

    footprint: Footprint
    held: tuple[Held, ...]

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The number of each rank's node."""
        return tuple(held.node for held in self.held)

    def moved(self, before: Sequence[Node], now: Sequence[Node]) -> Placement:
        """Return the same placement among other nodes; it holds nothing if one of its nodes is gone."""
        # A node that was restarted keeps its name but not its id: what ran there is gone.
        numbers = {(node.name, node.node_id): number for number, node in enumerate(now)}
        places = [numbers.get((before[held.node].name, before[held.node].node_id)) for held in self.held]
        there = (
            held._replace(node=place, gpus=_renumbered(held.gpus, int(now[place].gpus)))
            for held, place in zip(self.held, places, strict=True)
            if place is not None
        )
        return Placement(footprint=self.footprint, held=tuple(there) if None not in places else ())


def _renumbered(held: Sequence[tuple[int, int]], count: int) -> tuple[tuple[int, int], ...]:
    """Return GPUs with numbers below `count`, of a node that may have lost some of its GPUs."""
    # Of a node only the number of its GPUs is known, not which of them it has lost.
    free = iter(sorted(set(range(count)) - {gpu for gpu, _ in held}))
    numbers = ((gpu if gpu < count else next(free, None), units) for gpu, units in held)
    return tuple((gpu, units) for gpu, units in numbers if gpu is not None)


def devices(footprint: Footprint) -> int:
    """Return the ten-thousandths of GPUs that a rank occupies."""
    return units_of(footprint.gang.occupying(footprint.timing).gpus_per_rank)


def units_of(amount: float) -> int:
    """Return an amount of a resource in ten-thousandths."""
    return round(amount * UNITS)


def weight(footprint: Footprint, nodes: Sequence[Node]) -> float:
    """Return the GPUs that a gang occupies, or the cores if there are no GPUs."""
    gang = footprint.gang
    if any(node.gpus for node in nodes):
        return gang.ranks * devices(footprint) / UNITS
    return float(gang.ranks * gang.cpus_per_rank)


class _Free(NamedTuple):
    """The free resources of a node; nodes with equal values are interchangeable for every gang."""

    spare: int  # over all GPUs
    cpus: int
    gpus: tuple[int, ...]  # of each GPU, the emptiest first
    mode: str  # the timing mode of the gangs on the node; empty if there are none
    gpu_type: str


class Occupancy:
    """The free resources of all nodes.

    A node is in one timing mode at a time: an `exclusive` gang is alone on its nodes, `device` gangs share a node
    but no device, and `shared` gangs share devices, so that gangs without valid timings cannot disturb others' timings.
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
        self._kinds = set(self._empty)
        self._alike: dict[_Free, dict[int, None]] = {}
        # Nodes with equal free resources are looked at once, however many there are; the dict keeps their order.
        for index, free in enumerate(self._free):
            self._alike.setdefault(free, {})[index] = None

    def place(self, footprint: Footprint, without: Set[int] = frozenset()) -> Placement | None:
        """Return where the gang may start now, not using these nodes; None if it has to wait. Changes nothing."""
        chosen: list[tuple[int, int]] = []
        for part in footprint.gang.parts():
            places = self._choose(Footprint(gang=part, timing=footprint.timing), without)
            if places is None:
                return None
            chosen += places
        return self._fill(footprint, chosen)

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
        """Return the gangs on the node."""
        return self._tenants[node]

    def ranks_when_empty(self, footprint: Footprint, node: int) -> int:
        """Return how many of the gang's ranks fit on the node when it is empty."""
        return _ranks(footprint, self._empty[node])

    def ranks_without(self, footprint: Footprint, node: int, leaving: Sequence[Placement]) -> int:
        """Return how many of the gang's ranks would fit on the node without these placements."""
        cpus, gpus = self._cpus[node], list(self._gpus[node])
        for held in (held for placement in leaving for held in placement.held if held.node == node):
            cpus += held.cpus
            for gpu, units in held.gpus:
                gpus[gpu] += units
        # By identity: without GPUs, two gangs on a node may hold equal values.
        staying = [placement for placement in self._tenants[node] if all(placement is not gone for gone in leaving)]
        mode = staying[0].footprint.timing if staying else ""
        gpus.sort(reverse=True)
        return _ranks(footprint, _Free(sum(gpus), cpus, tuple(gpus), mode, self.nodes[node].gpu_type))

    def nodes_of(self, footprint: Footprint) -> int | None:
        """Return how many nodes the gang takes: one if any node could hold it alone; None if as many as it needs."""
        fits_one_node = any(_ranks(footprint, free) >= footprint.gang.ranks for free in self._kinds)
        return footprint.gang.nodes or (1 if fits_one_node else None)

    def _choose(self, footprint: Footprint, without: Set[int]) -> list[tuple[int, int]] | None:
        """Choose the nodes of a gang with one type of GPU; returns (node, ranks on it)."""
        ranks = footprint.gang.ranks
        rooms = [(_ranks(footprint, free), free) for free in self._alike]
        if count := self.nodes_of(footprint):
            # The fullest nodes that have room, which keeps the emptier ones for larger gangs.
            fullest = sorted(free for room, free in rooms if room >= footprint.gang.ranks_per_node)
            nodes = (node for free in fullest for node in self._latest(free, without))
            places = [(node, footprint.gang.ranks_per_node) for node in islice(nodes, count)]
            return places if len(places) == count else None
        chosen: list[tuple[int, int]] = []
        # The emptiest nodes first: the fewest nodes, and so the least traffic between nodes.
        for room, free in sorted((pair for pair in rooms if pair[0]), reverse=True):
            for node in self._latest(free, without):
                chosen.append((node, min(room, ranks)))
                ranks -= chosen[-1][1]
                if not ranks:
                    return chosen
        return None

    def _latest(self, free: _Free, without: Set[int]) -> Iterator[int]:
        """Return the nodes in this state, most recently changed first: their processes are warm."""
        return (node for node in reversed(self._alike[free]) if node not in without)

    def _fill(self, footprint: Footprint, chosen: Iterable[tuple[int, int]]) -> Placement:
        gang, held = footprint.gang, []
        for node, ranks in chosen:
            if footprint.timing == "exclusive":  # the first of its ranks there holds the whole node
                everything = tuple((gpu, units) for gpu, units in enumerate(self._gpus[node]))
                held += [Held(node, self._cpus[node], everything), *[Held(node, 0, ())] * (ranks - 1)]
                continue
            gpus = list(self._gpus[node])
            for _ in range(ranks):
                held.append(Held(node, gang.cpus_per_rank * UNITS, tuple(_take(gpus, devices(footprint)))))
        return Placement(footprint=footprint, held=tuple(held))

    def _look(self, node: int) -> _Free:
        tenants = self._tenants[node]
        mode = tenants[0].footprint.timing if tenants else ""
        gpus = tuple(sorted(self._gpus[node], reverse=True))
        return _Free(sum(gpus), self._cpus[node], gpus, mode, self.nodes[node].gpu_type)

    def _refresh(self, node: int) -> None:
        # Removed and added again, so that the node comes last, as the most recently changed one.
        before = self._alike[self._free[node]]
        del before[node]
        if not before:
            del self._alike[self._free[node]]
        self._free[node] = self._look(node)
        self._alike.setdefault(self._free[node], {})[node] = None


@functools.lru_cache(maxsize=100_000)
def _ranks(footprint: Footprint, free: _Free) -> int:
    """Return how many of the gang's ranks fit into the free resources."""
    gang = footprint.gang
    if free.mode and (footprint.timing == "exclusive" or free.mode != footprint.timing):
        return 0
    if gang.gpu_types and not of_type(free.gpu_type, gang.gpu_types[0]):
        return 0
    room = gang.ranks
    if gang.cpus_per_rank:
        room = min(room, free.cpus // (gang.cpus_per_rank * UNITS))
    units_per_rank = devices(footprint)
    # A fraction must fit on one GPU: halves that are free on two GPUs hold no rank.
    if 0 < units_per_rank < UNITS:
        room = min(room, sum(units // units_per_rank for units in free.gpus))
    elif units_per_rank:
        room = min(room, sum(units == UNITS for units in free.gpus) // (units_per_rank // UNITS))
    if gang.nodes is None:
        return room
    return gang.ranks_per_node if room >= gang.ranks_per_node else 0


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


def kept_gang(footprint: Footprint, footprints: Iterable[Footprint], nodes: Sequence[Node]) -> Gang:
    """Return the gang whose place such a trial takes: its own, or the largest of `footprints` that can serve it.

    `nodes` has the node of each rank. A larger gang can serve an exclusive trial on one node: the first ranks
    run the trial, the others idle, and no process has to start when the footprint changes. The gang must fit that node,
    and its ranks must be like the trial's. The result is the same for all footprints that share a place.
    """
    own, there = footprint.gang, set(nodes)
    if footprint.timing != "exclusive" or len(there) != 1 or len(own.gpu_types) > 1:
        return own
    alike = (
        larger.gang
        for larger in footprints
        if larger.timing == "exclusive"
        and replace(larger.gang, ranks=own.ranks) == own
        and not why_infeasible(larger.gang, tuple(there))
    )
    return max([own, *alike], key=lambda gang: gang.ranks)
