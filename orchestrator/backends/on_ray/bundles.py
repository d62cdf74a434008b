"""What a gang asks Ray for: a bundle for each rank, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence

from ray.tune import PlacementGroupFactory

from orchestrator.backends.on_ray.cluster_spec import NODE_ID
from sweeps.feasibility import Node
from sweeps.trial import Gang


class Bundles(PlacementGroupFactory):  # type: ignore[misc]
    """What Tune reserves for a gang, as a whole or not at all; the supervisor's own empty bundle comes first."""

    def __init__(self, gang: Gang, nodes: Sequence[Node] = ()) -> None:
        """`nodes` are those of the ranks, one by one; without them Ray chooses."""
        each = {"CPU": gang.cpus_per_rank, "GPU": gang.gpus_per_rank}
        chosen = {"bundle_label_selector": [{NODE_ID: node.node_id} for node in nodes]} if nodes else {}
        super().__init__([{}] + [each] * gang.ranks, strategy="PACK", **chosen)
        self._node_ids = frozenset(node.node_id for node in nodes)

    def may_hold(self, other: Bundles) -> bool:
        """Whether this gang may hold what the other one needs: each names its nodes, or may be anywhere."""
        mine, others = self._node_ids, other._node_ids
        return not mine or not others or not mine.isdisjoint(others)
