"""What a cluster's autoscaler is asked for: a placement group that waits, for every gang that does.

Ray's autoscaler makes nodes for those by itself, for each group as a whole or not at all, and the groups end with their
driver however that ends. (`request_resources` has neither: of several bundles none comes where one cannot be had, and
what was asked for stays when its driver is killed, and is paid for.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray.util import placement_group, remove_placement_group

from orchestrator.backends.on_ray.cluster_spec import NODE_ID
from orchestrator.backends.quarantine import Quarantine
from sweeps.feasibility import Node, ranks_that_fit, why_infeasible
from sweeps.placement import Shape
from sweeps.trial import Gang

_GPU_TYPE = "accelerator_type:"
_SOME = 0.001
"""As much of the resource that marks a type of GPU as Ray itself asks for."""


class Demand:
    """Of one driver. A group that has got its nodes holds them until they are known here, and gives way then."""

    def __init__(self, labels: Mapping[str, str], quarantine: Quarantine) -> None:
        """`labels` are those that nodes have to have; `quarantine` has the GPUs that are not used any more."""
        self._labels, self._quarantine = dict(labels), quarantine
        self._groups: list[tuple[Shape, Any]] = []
        self._nodes: frozenset[Node] = frozenset()

    def settle(self, shapes: Sequence[Shape], nodes: Sequence[Node]) -> None:
        """From now on these gangs are asked for, and no others; `nodes` are those that there are."""
        if frozenset(nodes) != self._nodes:
            self.close()
            self._nodes = frozenset(nodes)
        missing = Counter(shapes)
        for shape, group in list(self._groups):
            if missing[shape]:
                missing[shape] -= 1
            else:
                self._groups.remove((shape, group))
                remove_placement_group(group)
        for shape in missing.elements():
            self._groups.append((shape, placement_group(**room(shape, nodes, self._labels, self._quarantine.node_ids))))

    def close(self) -> None:
        """Nothing is asked for any more."""
        for _, group in self._groups:
            remove_placement_group(group)
        self._groups = []


def room(
    shape: Shape, nodes: Sequence[Node], labels: Mapping[str, str], ailing: Collection[str] = ()
) -> dict[str, Any]:
    """The placement group that stands for a gang of this shape, as its arguments.

    A gang that fits the nodes there are asks for others: for a single one where one there is could hold it, and for the
    whole of such a one where it is exclusive. One that does not fit takes what is free into account,
    except on nodes that are `ailing`: Ray would count their lost GPUs, too, and hold the node for nobody.
    """
    gang = shape.gang
    each = [_bundle(part.cpus_per_rank, part) for part in gang.parts() for _ in range(part.ranks)]
    if why_infeasible(gang, nodes):
        there = _outside(ailing, labels) if ailing else dict(labels)
        return {"bundles": each, "strategy": "PACK", "bundle_label_selector": [there] * len(each)}
    holders = [node for node in nodes if len(gang.parts()) == 1 and ranks_that_fit(gang, node) >= gang.ranks]
    if holders and shape.timing == "exclusive":
        least = min(holders, key=lambda node: (node.gpus, node.cpus))
        each = [_bundle(least.cpus, replace(gang, gpus_per_rank=least.gpus))]
    elsewhere = _outside([node.node_id for node in nodes], labels)
    strategy = "STRICT_PACK" if holders else "PACK"
    return {"bundles": each, "strategy": strategy, "bundle_label_selector": [elsewhere] * len(each)}


def _outside(node_ids: Collection[str], labels: Mapping[str, str]) -> dict[str, str]:
    return {**labels, NODE_ID: f"!in({','.join(sorted(node_ids))})"}


def _bundle(cpus: float, gang: Gang) -> dict[str, float]:
    """For a rank of a gang on one type of GPU, or on any."""
    types = {f"{_GPU_TYPE}{gpu_type}": _SOME for gpu_type in gang.gpu_types}
    return {name: amount for name, amount in {"CPU": cpus, "GPU": gang.gpus_per_rank, **types}.items() if amount}
