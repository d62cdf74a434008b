"""Writes a cluster file for `ray up`, which starts machines in a cloud."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from orchestrator.launch.launch import Launch

_HEAD = {"aws": {"InstanceType": "m5.large"}, "gcp": {"machineType": "n1-standard-2"}}
_DISK: Mapping[str, dict[str, Any]] = {
    "aws": {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 140, "VolumeType": "gp3"}}]},
    "gcp": {
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "type": "PERSISTENT",
                "initializeParams": {
                    "diskSizeGb": 140,
                    "sourceImage": "projects/deeplearning-platform-release/global/images/family/"
                    "common-cu129-ubuntu-2204-nvidia-580",
                },
            }
        ]
    },
}
"""Node settings for a disk that holds PyTorch and Ray, with the provider's default image."""

_KEY = {"aws": "InstanceType", "gcp": "machineType"}


def text(launch: Launch) -> str:
    """Return YAML for `ray up FILE` with the commands at its top. All machines must share the results."""
    provider: dict[str, Any] = {"type": launch.provider, "region": launch.region, "cache_stopped_nodes": False}
    provider["availability_zone"] = f"{launch.region}{'-a' if launch.provider == 'gcp' else 'a'}"
    if launch.provider == "gcp":
        provider["project_id"] = launch.project
    resources = {"CPU": launch.cpus_per_node} | ({"GPU": launch.gpus_per_node} if launch.gpus_per_node else {})
    disk = _DISK[launch.provider]
    cluster = {
        "cluster_name": launch.cluster_name,
        "max_workers": launch.nodes,
        "idle_timeout_minutes": 5,
        "provider": provider,
        "auth": {"ssh_user": "ubuntu"},
        "head_node_type": "head",
        "available_node_types": {
            "head": {"resources": {"CPU": 0}, "node_config": _HEAD[launch.provider] | disk, "max_workers": 0},
            "worker": {
                "resources": resources,
                "node_config": {_KEY[launch.provider]: launch.instance} | disk,
                "min_workers": launch.nodes,
                "max_workers": launch.nodes,
            },
        },
        "file_mounts": {},
        "setup_commands": list(launch.setup),
    }
    if launch.image:
        cluster["docker"] = {"image": launch.image, "container_name": "ray", "pull_before_run": True}
    sweep = launch.command("cluster.address=auto", wait_s=900)
    there = shlex.quote(f"cd {shlex.quote(str(launch.workdir))} && {sweep}")
    return _HEADING.format(name=shlex.quote(f"{launch.name}.yaml"), sweep=there) + str(
        yaml.safe_dump(cluster, sort_keys=False, width=1000)
    )


_HEADING = """\
# ray up {name}
# ray exec {name} {sweep}
# ray down {name}
"""
