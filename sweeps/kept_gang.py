"""Which kept processes a trial may use: those of a larger gang, where it has the node to itself anyway."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sweeps.feasibility import Node, why_infeasible
from sweeps.placement import Shape
from sweeps.trial import Gang


def kept_gang(shape: Shape, shapes: Iterable[Shape], nodes: Sequence[Node]) -> Gang:
    """The gang whose place a trial of this shape takes: its own, or the largest of `shapes` that serves it as well.

    `nodes` are those of its ranks, one by one. A larger gang serves an exclusive trial on one node: the first ranks
    are the trial's, the others idle, and no process has to start for a change of shape. The gang has to fit that node,
    and each of its ranks to be like the trial's. The answer is the same for all shapes that share a place.
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
