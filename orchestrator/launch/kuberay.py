"""Writes a RayJob for KubeRay: a cluster that is created for the sweep and ends with it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import yaml

from orchestrator.launch.launch import Launch

RESULTS = "/results"


def text(launch: Launch) -> str:
    """Return YAML for `kubectl create -f`. The results are on a volume that outlives the cluster."""
    memory_gb = launch.memory_gb_per_node or 4 * launch.cpus_per_node
    limits = {"cpu": str(launch.cpus_per_node), "memory": f"{memory_gb:g}Gi"}
    worker = _pod(launch, limits | ({"nvidia.com/gpu": str(launch.gpus_per_node)} if launch.gpus_per_node else {}))
    if launch.gpus_per_node and launch.gpu_type:
        worker["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": launch.gpu_type}
    workers = {
        "groupName": "gpu" if launch.gpus_per_node else "cpu",
        "replicas": launch.nodes,
        "minReplicas": launch.nodes,
        "maxReplicas": launch.nodes,
        "rayStartParams": {},
        "template": worker,
    }
    driver = _pod(launch, {"cpu": "2", "memory": "8Gi"})  # runs no trials
    rayjob = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"generateName": f"{launch.cluster_name}-"},
        "spec": {
            "entrypoint": launch.command("cluster.address=auto", f"results_dir={RESULTS}", wait_s=600),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "backoffLimit": 3,
            "rayClusterSpec": {
                "rayVersion": version("ray"),
                "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": driver},
                "workerGroupSpecs": [workers],
            },
        },
    }
    return str(yaml.safe_dump(rayjob, sort_keys=False, width=1000))


def _pod(launch: Launch, limits: dict[str, str]) -> dict[str, Any]:
    ray = {
        "name": "ray",
        "image": launch.image,
        "resources": {"limits": dict(limits), "requests": dict(limits)},
        "volumeMounts": [{"name": "results", "mountPath": RESULTS}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [
        {"name": "results", "persistentVolumeClaim": {"claimName": launch.claim}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    return {"spec": {"containers": [ray], "volumes": volumes}}
