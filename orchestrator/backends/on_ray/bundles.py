"""What a gang asks Ray for: a bundle for each rank, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence

from ray.tune import PlacementGroupFactory

from sweeps.feasibility import Node
from sweeps.trial import Gang

NODE_ID = "ray.io/node-id"
"""The label by which Ray tells nodes apart, several of one host, too."""


def bundles(gang: Gang, nodes: Sequence[Node] = ()) -> PlacementGroupFactory:
    """What Tune reserves for a gang, as a whole or not at all; the supervisor's own empty bundle comes first.

    `nodes` are those of the ranks, one by one; without them Ray chooses.
    """
    each = {"CPU": gang.cpus_per_rank, "GPU": gang.gpus_per_rank}
    chosen = {"bundle_label_selector": [{NODE_ID: node.node_id} for node in nodes]} if nodes else {}
    return PlacementGroupFactory([{}] + [each] * gang.ranks, strategy="PACK", **chosen)
