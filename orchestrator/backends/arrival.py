"""Waits for nodes of a cluster: the first that could run anything, and those that an autoscaler adds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from orchestrator.config.request import Cluster
from orchestrator.scheduling.node import Node
from orchestrator.scheduling.placement import Shape
from sweeps.mistakes import MistakesError
from sweeps.trial import TrialSpec

ARRIVAL_S = 30.0
"""A cluster is believed to be without nodes only after so long: a busy head forgets its own, and takes it back."""

LOOK_EVERY_S = 0.5

NOWHERE = Node(name="a node to come", cpus=64, gpus=64)
"""Stands for a node that nobody knows yet, while the first is asked for: with GPUs, and few cores for each."""


def patience_s(wait_s: float) -> float:
    """Seconds for which a cluster may have no usable node if `cluster.wait_s` is this."""
    return max(ARRIVAL_S, wait_s)


def can_run(nodes: Sequence[Node]) -> bool:
    """Whether any node can run trials; the head of a cluster often has no CPUs of its own."""
    return any(node.cpus or node.gpus for node in nodes)


def has_come(nodes: Sequence[Node], cluster: Cluster) -> bool:
    """Whether there is what a plan can be made for: where GPUs are asked for and may be waited for, one of those."""
    awaits_gpu = cluster.wait_s > 0 and cluster.device == "cuda"
    return any(node.gpus for node in nodes) if awaits_gpu else can_run(nodes)


def first_shape(trials: Iterable[TrialSpec]) -> Shape:
    """What a cluster without nodes is asked for first, of trials as they would be NOWHERE: room for the smallest."""
    return min(map(Shape.of, trials), key=lambda shape: shape.size)


def arrived(
    nodes: Callable[[], Sequence[Node]],
    cluster: Cluster,
    *,
    stopping: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Sequence[Node]:
    """The nodes, once one of them can run what is asked for, or somebody wants to stop.

    After `patience_s` those that can run something else; MistakesError where there is none at all.
    """
    began_s, within_s = clock(), patience_s(cluster.wait_s)
    while not has_come(found := nodes(), cluster) and not stopping():
        if clock() - began_s >= within_s:
            if can_run(found):
                return found
            raise MistakesError([_refusal(found, cluster, within_s)])
        sleep(LOOK_EVERY_S)
    return found


def _refusal(found: Sequence[Node], cluster: Cluster, within_s: float) -> str:
    where = f"cluster.address={cluster.address}: " if cluster.address else "Ray: "
    labels = f" with the labels {dict(cluster.labels)}" if cluster.labels else ""
    state = f"none of its {len(found)} nodes{labels} has CPUs" if found else f"it has no node{labels} that is alive"
    return f"{where}{state}, and none came within {within_s:g} s (cluster.wait_s waits longer)"
