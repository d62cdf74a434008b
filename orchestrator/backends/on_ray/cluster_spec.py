"""Settings of the Ray cluster to use. Does not import ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NODE_ID = "ray.io/node-id"
"""Ray's label that identifies a node, even if a host has several."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Which cluster to use, and which of its nodes."""

    address: str | None = None
    """None: RAY_ADDRESS if it is set, else a cluster started on this machine and stopped at the end."""
    dashboard: bool = True
    """Whether a cluster started here has a dashboard."""
    cpus: int | None = None
    """Resources of a cluster started here; None: as many as Ray finds."""
    gpus: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Only nodes with all of these are used."""
    asks: bool = False
    """Whether to ask its autoscaler for nodes that trials wait for."""
    verbose: bool = False
    """Whether Ray and Tune print their messages."""
