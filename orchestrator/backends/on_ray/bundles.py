"""What a gang asks Ray for: a bundle for each rank, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence

from ray.tune import PlacementGroupFactory

from orchestrator.backends.on_ray.cluster_spec import NODE_ID
from sweeps.feasibility import Node
from sweeps.trial import Gang


def bundles(gang: Gang, nodes: Sequence[Node] = ()) -> PlacementGroupFactory:
    """What Tune reserves for a gang, as a whole or not at all; the supervisor's own empty bundle comes first.

    `nodes` are those of the ranks, one by one; without them Ray chooses.
    """
    each = {"CPU": gang.cpus_per_rank, "GPU": gang.gpus_per_rank}
    chosen = {"bundle_label_selector": [{NODE_ID: node.node_id} for node in nodes]} if nodes else {}
    return PlacementGroupFactory([{}] + [each] * gang.ranks, strategy="PACK", **chosen)


def share_nodes(one: PlacementGroupFactory, other: PlacementGroupFactory) -> bool:
    """Whether one of the gangs may hold what the other needs: each names its nodes, or may be anywhere."""
    mine, theirs = _nodes(one), _nodes(other)
    return not mine or not theirs or not mine.isdisjoint(theirs)


def _nodes(request: PlacementGroupFactory) -> set[str]:
    return {label[NODE_ID] for label in request._bound.arguments.get("bundle_label_selector") or ()}
