"""Waits for nodes: for the first that can run anything, and for nodes that fit trials which fit none of the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.schedule.cluster import Node, Shape, why_infeasible
from orchestrator.store.record import TrialOutcome
from sweeps.errors import ConfigError
from sweeps.status import Status
from sweeps.trial import Gang, TrialSpec

EMPTY_CLUSTER_S = 30.0
"""For how long a cluster may have no nodes before that is believed: a restarted head forgets its nodes for a while."""

LOOK_EVERY_S = 0.5

NO_NODE_YET = Node(name="a node to come", cpus=64, gpus=64)
"""The first node of a cluster, before it is known: with GPUs, and few cores for each."""


class Requested(Protocol):
    """The requested cluster: the keys of the config's section `cluster` that a wait depends on."""

    @property
    def address(self) -> str | None: ...  # noqa: D102
    @property
    def labels(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def wait_s(self) -> float: ...  # noqa: D102
    @property
    def device(self) -> str: ...  # noqa: D102


def patience_s(wait_s: float) -> float:
    """Return for how many seconds a cluster may have no usable node if `cluster.wait_s` is this."""
    return max(EMPTY_CLUSTER_S, wait_s)


def can_run(nodes: Sequence[Node]) -> bool:
    """Return whether any node can run trials; the head of a cluster often has no CPUs for them."""
    return any(node.cpus or node.gpus for node in nodes)


def nodes_ready(nodes: Sequence[Node], cluster: Requested) -> bool:
    """Return whether a plan can be made: if GPUs are requested and may be waited for, a node must have some."""
    needs_gpu = cluster.wait_s > 0 and cluster.device == "cuda"
    return any(node.gpus for node in nodes) if needs_gpu else can_run(nodes)


def first_shape(trials: Iterable[TrialSpec]) -> Shape:
    """Return the smallest shape of these trials, planned for NO_NODE_YET: an empty cluster is asked for it first."""
    return min(map(Shape.of, trials), key=lambda shape: shape.size)


def first_nodes(
    nodes: Callable[[], Sequence[Node]],
    cluster: Requested,
    *,
    stopping: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Sequence[Node]:
    """Return the nodes as soon as they are ready, or `stopping`.

    After `patience_s`, return nodes that can run something else, if any. Else raise ConfigError.
    """
    began_s, limit_s = clock(), patience_s(cluster.wait_s)
    while not nodes_ready(current := nodes(), cluster) and not stopping():
        if clock() - began_s >= limit_s:
            if can_run(current):
                return current
            name = f"cluster.address={cluster.address}" if cluster.address else "Ray"
            labels = f" with the labels {dict(cluster.labels)}" if cluster.labels else ""
            state = f"none of {len(current)} nodes{labels} has CPUs" if current else f"no node{labels} is alive"
            raise ConfigError([f"{name}: {state}, and none came within {limit_s:g} s (cluster.wait_s waits longer)"])
        sleep(LOOK_EVERY_S)
    return current


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long trials that fit no nodes wait for some."""

    wait_s: float = 0.0
    waited_s: float = 0.0
    """How long the trials that fit no nodes at first have waited already."""


class Unplaced:
    """The trials of one queue that fit no nodes; seconds are those of the queue's clock.

    A trial's wait counts from when nothing runs: until then, running trials hold nodes that an autoscaler could
    replace. While there is no node at all, the wait goes on for the same reason as before.
    """

    def __init__(self, patience: Patience) -> None:
        self._wait_s, self._waited_s = patience.wait_s, patience.waited_s
        self._nodes: Sequence[Node] = ()
        self._last_node_s: float | None = None
        self._since_s: dict[str, float] = {}
        self._reasons: dict[Gang, str] = {}
        """Why a gang fits none of the last known nodes; empty if it fits."""

    def __len__(self) -> int:
        return len(self._since_s)

    def __contains__(self, trial: TrialSpec) -> bool:
        return trial.trial_id in self._since_s

    def set_nodes(self, nodes: Sequence[Node], now_s: float) -> bool:
        """Set the current nodes. Return whether there has been no usable node for too long."""
        self._nodes = nodes
        if can_run(nodes) or self._last_node_s is None:
            self._last_node_s = now_s
        return now_s - self._last_node_s >= patience_s(self._wait_s)

    def give_up(self, waiting: Sequence[TrialSpec], now_s: float, *, running: bool) -> list[TrialSpec]:
        """Return the waiting trials that have waited long enough, and forget them; `running`: whether others run."""
        if can_run(self._nodes):
            self._reasons = {gang: why_infeasible(gang, self._nodes) for gang in {trial.gang for trial in waiting}}
            known = {} if running else self._since_s
            unplaced = [trial.trial_id for trial in waiting if self._reasons[trial.gang]]
            self._since_s = {trial: known.get(trial, now_s - self._waited_s) for trial in unplaced}
        self._waited_s = 0.0
        since_s = self._since_s
        given_up = [trial for trial in waiting if now_s - since_s.get(trial.trial_id, math.inf) >= self._wait_s]
        for trial in given_up:
            del since_s[trial.trial_id]
        return given_up

    def outcome(self, trial: TrialSpec) -> TrialOutcome:
        """Return the outcome of a trial that was given up, or of another trial with the same gang."""
        waited = f"; no node for it came within cluster.wait_s={self._wait_s:g}" if self._wait_s else ""
        return TrialOutcome(status=Status.INFEASIBLE, note=self._reasons[trial.gang] + waited, wall_s=0.0)
