"""Can a gang ever be placed on these nodes? Ray itself would wait for ever."""

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


def ranks_that_fit(gang: Gang, node: Node) -> int:
    """How many of the gang's ranks the empty node holds; a rank never spans nodes, nor shares a GPU with another."""
    by_cpu = _times(gang.cpus_per_rank, node.cpus) if gang.cpus_per_rank else gang.ranks
    by_gpu = _times(gang.gpus_per_rank, node.gpus) if gang.gpus_per_rank else gang.ranks
    return min(by_cpu, by_gpu)


def _times(part: float, whole: float) -> int:
    return math.floor(whole / part + 1e-9)  # 0.3 / 0.1 is 2.9999999999999996


def why_infeasible(gang: Gang, nodes: Sequence[Node]) -> str:
    """Empty if the nodes could hold the whole gang at once, else one line that says what is missing."""
    room = sum(ranks_that_fit(gang, node) for node in nodes)
    if room >= gang.ranks:
        return ""
    each = f"{gang.cpus_per_rank} CPUs" + (f" and {gang.gpus_per_rank:g} GPUs" if gang.gpus_per_rank else "")
    have = ", ".join(f"{node.name}: {node.cpus:g} CPUs, {node.gpus:g} GPUs" for node in nodes) or "no nodes"
    return f"needs {gang.ranks} ranks of {each}; there is room for {room} ({have})"
