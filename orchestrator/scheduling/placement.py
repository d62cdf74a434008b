"""A gang in its place, and what it has in common with others: its shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from orchestrator.scheduling.node import Node
from sweeps.trial import Gang, TrialSpec

UNITS = 10_000
"""Ray counts resources in ten-thousandths; integers do not accumulate rounding errors."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What trials must have in common to take one another's place and use one another's processes."""

    gang: Gang
    timing: str

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_hash", hash((self.gang, self.timing))
        )  # cached, since shapes are looked up for every trial

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    @staticmethod
    def of(trial: TrialSpec) -> Shape:
        """The shape of a trial."""
        return Shape(gang=trial.gang, timing=trial.timing)

    @property
    def size(self) -> tuple[float, int, int]:
        """Sort key by which shapes are larger or smaller than others."""
        return (self.gang.gpus, self.gang.ranks, self.gang.cpus_per_rank)


class Held(NamedTuple):
    """The resources that one rank holds on a node."""

    node: int
    cpus: int
    gpus: tuple[tuple[int, int], ...]
    """(index of the GPU, ten-thousandths of it)"""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A gang in its place: what each rank holds, rank by rank."""

    shape: Shape
    held: tuple[Held, ...]

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Each rank's node, by its number."""
        return tuple(held.node for held in self.held)

    def moved(self, before: Sequence[Node], now: Sequence[Node]) -> Placement:
        """The same placement among other nodes; it holds nothing if one of its own is gone."""
        numbers = {(node.name, node.node_id): number for number, node in enumerate(now)}
        places = [numbers.get((before[held.node].name, before[held.node].node_id)) for held in self.held]
        there = (held._replace(node=place) for held, place in zip(self.held, places, strict=True) if place is not None)
        return Placement(shape=self.shape, held=tuple(there) if None not in places else ())


def devices(shape: Shape) -> int:
    """Ten-thousandths of GPUs that a rank occupies; a timed fraction of a GPU occupies all of it."""
    gpus = shape.gang.gpus_per_rank
    return units_of(gpus if shape.timing == "shared" else math.ceil(gpus))


def units_of(amount: float) -> int:
    """An amount of a resource in ten-thousandths."""
    return round(amount * UNITS)


def weight(shape: Shape, nodes: Sequence[Node]) -> float:
    """GPUs that a gang occupies, or cores if there are no GPUs."""
    gang = shape.gang
    if any(node.gpus for node in nodes):
        return gang.ranks * devices(shape) / UNITS
    return float(gang.ranks * gang.cpus_per_rank)
