"""The cluster that takes the trials, if any: the one place that reads `RAY_ADDRESS`."""

from __future__ import annotations

import os


def cluster_address(backend: str | None, address: str | None) -> tuple[str, str]:
    """Return the setting that names the cluster, and its address; two empty texts if this machine runs the trials.

    `backend` and `address` are the config's keys `backend` and `cluster.address`.
    """
    if backend == "inprocess":
        return "", ""
    if address:
        return "cluster.address", address
    environment = os.environ.get("RAY_ADDRESS")
    return ("RAY_ADDRESS", environment) if environment else ("", "")
