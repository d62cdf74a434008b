"""Asks the cluster's autoscaler for nodes: one pending placement group for every waiting gang.

Ray's autoscaler adds nodes for pending groups by itself, for each group as a whole or not at all, and the groups end
with their driver, however it ends. (`request_resources` does neither: if one of several bundles is unavailable, none
is provided, and if its driver is killed, the request stays and costs money.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray.util import placement_group, remove_placement_group

from orchestrator.backends.gpu_quarantine import Quarantine
from orchestrator.backends.ray.cluster import GPU_TYPE, NODE_ID
from orchestrator.schedule.cluster import Footprint, Node, ranks_that_fit, why_infeasible
from sweeps.layout import Gang

_SOME = 0.001  # the amount of the resource that marks a GPU type; the same as Ray requests


class Demand:
    """The demand of one driver. A group keeps its nodes until they are known here, and is then removed."""

    def __init__(self, labels: Mapping[str, str], quarantine: Quarantine) -> None:
        """`labels` are required of nodes; `quarantine` has the GPUs that are no longer used."""
        self._labels, self._quarantine = dict(labels), quarantine
        self._groups: list[tuple[Footprint, Any]] = []
        self._nodes: frozenset[Node] = frozenset()

    def update(self, footprints: Sequence[Footprint], nodes: Sequence[Node]) -> None:
        """Ask for exactly these gangs from now on; `nodes` are the existing ones."""
        # The nodes may be those that were asked for: a group that still holds them would block the trial.
        if frozenset(nodes) != self._nodes:
            self.close()
            self._nodes = frozenset(nodes)
        # Groups of footprints that are still wanted stay: their nodes may be on the way.
        missing = Counter(footprints)
        for footprint, group in list(self._groups):
            if missing[footprint]:
                missing[footprint] -= 1
            else:
                self._groups.remove((footprint, group))
                remove_placement_group(group)
        for footprint in missing.elements():
            self._groups.append(
                (footprint, placement_group(**room(footprint, nodes, self._labels, self._quarantine.node_ids)))
            )

    def close(self) -> None:
        """Ask for nothing any more."""
        for _, group in self._groups:
            remove_placement_group(group)
        self._groups = []


def room(
    footprint: Footprint, nodes: Sequence[Node], labels: Mapping[str, str], ailing: Collection[str] = ()
) -> dict[str, Any]:
    """Return the arguments of the placement group for a gang of this footprint.

    A gang that fits the existing nodes asks for other nodes: for a single one if one of the existing nodes could hold
    it, and for such a whole node if it is exclusive. One that does not fit may also use what is free on existing nodes,
    except on `ailing` ones: Ray would count their lost GPUs, too, and hold a node that is too small.
    """
    gang = footprint.gang.occupying(footprint.timing)
    bundles = [_bundle(part.cpus_per_rank, part) for part in gang.parts() for _ in range(part.ranks)]
    spread = "PACK"
    if gang.nodes:
        bundles = []
        for part in gang.parts():
            ranks = part.ranks_per_node
            of_node = _bundle(ranks * part.cpus_per_rank, replace(part, gpus_per_rank=ranks * part.gpus_per_rank))
            bundles += [of_node] * (part.nodes or 1)
        spread = "STRICT_SPREAD"
    if why_infeasible(gang, nodes):
        there = _outside(ailing, labels) if ailing else dict(labels)
        return {"bundles": bundles, "strategy": spread, "bundle_label_selector": [there] * len(bundles)}
    holders = [node for node in nodes if len(gang.parts()) == 1 and ranks_that_fit(gang, node) >= gang.ranks]
    if holders and footprint.timing == "exclusive":
        least = min(holders, key=lambda node: (node.gpus, node.cpus))
        bundles = [_bundle(least.cpus, replace(gang, gpus_per_rank=least.gpus))]
    elsewhere = _outside([node.node_id for node in nodes], labels)
    strategy = "STRICT_PACK" if holders else spread
    return {"bundles": bundles, "strategy": strategy, "bundle_label_selector": [elsewhere] * len(bundles)}


def _outside(node_ids: Collection[str], labels: Mapping[str, str]) -> dict[str, str]:
    return {**labels, NODE_ID: f"!in({','.join(sorted(node_ids))})"}


def _bundle(cpus: float, gang: Gang) -> dict[str, float]:
    """Return the bundle of one rank of a gang with at most one GPU type."""
    types = {f"{GPU_TYPE}{gpu_type}": _SOME for gpu_type in gang.gpu_types}
    return {name: amount for name, amount in {"CPU": cpus, "GPU": gang.gpus_per_rank, **types}.items() if amount}
