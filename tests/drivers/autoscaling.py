"""A Ray cluster whose nodes come and go: Ray's autoscaler, with processes on this machine as nodes.

Ray's `AutoscalingCluster` is not used: it ends every other Ray of the machine first, and reads a file that Ray's wheel
does not have.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.drivers.ray_head import RayHead, free_port

_PROVIDER = "own_folders.Provider"
_PROVIDERS = Path(__file__).parent / "fake_nodes"
_COMMANDS = [f"{part}_commands" for part in ("initialization", "setup", "head_setup", "worker_setup")] + [
    "head_start_ray_commands",
    "worker_start_ray_commands",
    "cluster_synced_files",
]
_HEAD = "ray.head.default"
_HEAD_ID = "f" * 51 + "00000"

PLAIN = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""The environment of everybody who talks to it: its nodes know of no token."""


def node_type(most: int, labels: Mapping[str, str] | None = None, **resources: float) -> dict[str, Any]:
    """Return a type of nodes with these resources and a maximum number."""
    return {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": most, "labels": labels or {}}


@contextmanager
def autoscaling(
    folder: Path, *, cpus: int = 0, idle_s: float = 6.0, most: int = 8, **types: Mapping[str, Any]
) -> Iterator[str]:
    """Run a cluster for the block; yield its address. The head has this many CPUs; `most` limits the other nodes."""
    port = free_port()
    config = {
        "cluster_name": "autoscaling",
        "max_workers": most,
        "provider": {
            "type": "external",
            "module": _PROVIDER,
            "gcs_address": f"127.0.0.1:{port}",
            "disable_node_updaters": True,
            "launch_multiple": True,
            "head_node_id": _HEAD_ID,
        },
        "available_node_types": {_HEAD: node_type(0, CPU=cpus), **types},
        "head_node_type": _HEAD,
        "idle_timeout_minutes": idle_s / 60,
        "upscaling_speed": 1.0,
        **{key: {} for key in ("auth", "docker", "file_mounts")},
        **{key: [] for key in _COMMANDS},
    }
    file = folder / "autoscaler.json"
    file.write_text(json.dumps(config))
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_PROVIDERS), os.environ.get("PYTHONPATH")])),
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": _HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID,
    }
    options = (f"--port={port}", "--include-dashboard=false", f"--autoscaling-config={file}")
    head = RayHead(*options, cpus=cpus, **PLAIN, **environment)
    head.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        head.kill()
