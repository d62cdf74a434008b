"""The first node of a cluster that could run anything: it may come a little after the cluster itself answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.config.request import Request
from sweeps.feasibility import Node
from sweeps.mistakes import MistakesError

ARRIVAL_S = 30.0
"""A cluster is believed to be without nodes only after so long: a busy head forgets its own, and takes it back."""

LOOK_EVERY_S = 0.5


def can_run(nodes: Sequence[Node]) -> bool:
    """Whether there is anything to run on at all; the head of a cluster often has no CPUs of its own."""
    return any(node.cpus or node.gpus for node in nodes)


def arrived(
    nodes: Callable[[], Sequence[Node]],
    request: Request,
    *,
    within_s: float,
    stopping: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Sequence[Node]:
    """The nodes, once one of them can run something, or somebody wants to stop; MistakesError where none comes."""
    began_s = clock()
    while not can_run(found := nodes()) and not stopping():
        if clock() - began_s >= within_s:
            raise MistakesError([_refusal(found, request, within_s)])
        sleep(LOOK_EVERY_S)
    return found


def _refusal(found: Sequence[Node], request: Request, within_s: float) -> str:
    where = f"cluster.address={request.address}: " if request.address else "Ray: "
    labels = f" with the labels {dict(request.labels)}" if request.labels else ""
    state = f"none of its {len(found)} nodes{labels} has CPUs" if found else f"it has no node{labels} that is alive"
    return f"{where}{state}, and none came within {within_s:g} s (cluster.wait_s waits longer)"
