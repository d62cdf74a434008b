"""A node, and which gangs the nodes could hold; Ray itself would wait forever for a gang that never fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.trial import Gang


@dataclass(frozen=True, kw_only=True)
class Node:
    """What one node has in total."""

    name: str
    cpus: float
    gpus: float
    gpu_type: str = ""
    node_id: str = ""
    """Ray's identifier of the node, to distinguish nodes on one host; empty if not asked."""


def of_type(gpu_type: str, asked: str) -> bool:
    """Whether a GPU matches the requested type: `H100` matches `NVIDIA H100 80GB HBM3`."""
    return asked.lower() in gpu_type.lower()


def ranks_that_fit(gang: Gang, node: Node) -> int:
    """How many of the gang's ranks fit on the empty node; a rank never spans nodes or shares a GPU with another.

    The gang must have at most one GPU type.
    """
    if gang.gpu_types and not of_type(node.gpu_type, gang.gpu_types[0]):
        return 0
    by_cpu = _times(gang.cpus_per_rank, node.cpus) if gang.cpus_per_rank else gang.ranks
    by_gpu = _times(gang.gpus_per_rank, node.gpus) if gang.gpus_per_rank else gang.ranks
    return min(by_cpu, by_gpu)


def _times(part: float, whole: float) -> int:
    return math.floor(whole / part + 1e-9)  # 0.3 / 0.1 is 2.9999999999999996


def why_infeasible(gang: Gang, nodes: Sequence[Node]) -> str:
    """Empty if the nodes could hold the whole gang at once, else one line on what is missing."""
    return next(filter(None, (_missing(part, nodes) for part in gang.parts())), "")


def _missing(gang: Gang, nodes: Sequence[Node]) -> str:
    room = sum(ranks_that_fit(gang, node) for node in nodes)
    if room >= gang.ranks:
        return ""
    kind = f"{gang.gpu_types[0]} GPU" if gang.gpu_types else "GPU"
    each = _counted(gang.cpus_per_rank, "CPU")
    each += f" and {_counted(gang.gpus_per_rank, kind)}" if gang.gpus_per_rank else ""
    each += " (cluster.gpu_type)" if gang.gpu_types else ""
    have = ", ".join(_described(node, bool(gang.gpu_types)) for node in nodes) or "no nodes"
    return f"needs {gang.ranks} rank{'s' * (gang.ranks > 1)} of {each}; there is room for {room} ({have})"


def _described(node: Node, typed: bool) -> str:
    kind = f"{node.gpu_type or 'unknown'} GPU" if typed and node.gpus else "GPU"
    return f"{node.name}: {_counted(node.cpus, 'CPU')}, {_counted(node.gpus, kind)}"


def _counted(count: float, what: str) -> str:
    return f"{count:g} {what}" if count == 1 else f"{count:g} {what}s"
