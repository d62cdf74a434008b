"""What a Ray cluster is to be; no ray here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NODE_ID = "ray.io/node-id"
"""The label by which Ray tells nodes apart, several of one host, too."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Which cluster, and what of it."""

    address: str | None = None
    """None: RAY_ADDRESS, or else one that is started on this machine and ends with us."""
    dashboard: bool = True
    """Of one that is started."""
    cpus: int | None = None
    """What one that is started has; None: what Ray counts."""
    gpus: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Only nodes with all of these are used."""
    asks: bool = False
    """Whether its autoscaler is asked for the nodes that trials wait for."""
    verbose: bool = False
    """Whether Ray, and Tune, say what they have to say."""
