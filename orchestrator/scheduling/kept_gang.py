"""Which kept processes a trial may use: also those of a larger gang, if it has the node to itself anyway."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.scheduling.node import Node, why_infeasible
from orchestrator.scheduling.placement import Shape
from sweeps.trial import Gang


def kept_gang(shape: Shape, shapes: Iterable[Shape], nodes: Sequence[Node]) -> Gang:
    """The gang whose place a trial of this shape takes: its own, or the largest of `shapes` that can serve it.

    `nodes` has the node of each rank. A larger gang can serve an exclusive trial on one node: the first ranks
    run the trial, the others idle, and no process has to start when the shape changes. The gang must fit that node,
    and its ranks must be like the trial's. The result is the same for all shapes that share a place.
    """
    own, there = shape.gang, set(nodes)
    if shape.timing != "exclusive" or len(there) != 1 or len(own.gpu_types) > 1:
        return own
    alike = (
        each.gang
        for each in shapes
        if each.timing == "exclusive"
        and replace(each.gang, ranks=own.ranks) == own
        and not why_infeasible(each.gang, tuple(there))
    )
    return max([own, *alike], key=lambda gang: gang.ranks)
