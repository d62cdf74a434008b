"""Connects to a Ray cluster: an existing one, or one that is started here and ended afterwards.

An existing cluster gets the code with the connection, so that none of it has to be installed on the nodes.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from orchestrator.backends.ray import private
from orchestrator.backends.ray.head import check_head
from orchestrator.backends.ray.local_cluster import CODE, LocalCluster, leave_ray
from orchestrator.config.content_hashes import python_files
from orchestrator.config.settings import Settings
from orchestrator.schedule.cluster import Node
from sweeps.cluster_address import cluster_address

NODE_ID = "ray.io/node-id"  # Ray's label that identifies a node, even if a host has several

_ROOMS = tuple(room for room in ("sweeps", "trainables", "orchestrator", "studies") if (CODE / room).is_dir())
"""The project's packages; `studies` is in a clone only."""


def stage(target: Path, here: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Copy the code into `target`; returns the runtime_env that ships it.

    It consists of the project's packages and the Python files of the user's folder `here`, without hidden files,
    virtual environments, data and results. A submitted job already has its own folder on the nodes.
    """
    submitted = "RAY_JOB_CONFIG_JSON_ENV_VAR" in environment
    for file in () if submitted else python_files(here):
        copy = target / file.relative_to(here)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    for room in _ROOMS:
        shutil.copytree(CODE / room, target / room, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return {"py_modules": [str(target / room) for room in _ROOMS]} if submitted else {"working_dir": str(target)}


@contextmanager
def handler_kept(number: int) -> Iterator[None]:
    """Restore the handler of this signal, which Ray replaces. Both are possible in the main thread only."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, before)


GPU_TYPE = "accelerator_type:"  # the beginning of the resource by which Ray marks the nodes with a type of GPU


class Cluster:
    """A connection to Ray."""

    def __init__(self, settings: Settings, here: Node) -> None:
        """Without an address, start a cluster with the cores and GPUs of this machine, `here`."""
        self._labels, verbose = settings.cluster.labels, settings.verbose
        _, address = cluster_address("ray", settings.cluster.address)
        logging.getLogger("ray").setLevel(logging.INFO if verbose else logging.ERROR)
        if not verbose:
            private.hide_worker_deaths()
        shared: dict[str, Any] = {
            "log_to_driver": verbose,
            "logging_level": logging.INFO if verbose else logging.ERROR,
        }
        private.reload_authentication()
        self._local: LocalCluster | None = None  # none of the processes of an existing cluster is ours
        with handler_kept(signal.SIGTERM), private.sigterm_unhandled(), private.no_environment_of_uv():
            if address:
                context = _connect(address, shared)
            else:
                resources = {"num_cpus": int(here.cpus), "num_gpus": int(here.gpus)}
                self._local = LocalCluster(resources | {"include_dashboard": settings.cluster.dashboard} | shared)
                context = self._local.context
        self.dashboard_url: str = f"http://{context.dashboard_url}" if context.dashboard_url else ""

    def nodes(self) -> tuple[Node, ...]:
        """Return the live nodes with the requested labels that are not about to be removed, with all resources."""
        under_notice = private.draining_nodes()
        return tuple(
            Node(
                name=node["NodeManagerHostname"],
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
                gpu_type=next(
                    (name.removeprefix(GPU_TYPE) for name in node["Resources"] if name.startswith(GPU_TYPE)), ""
                ),
                node_id=node["NodeID"],
            )
            for node in ray.nodes()
            if node["Alive"]
            and node["NodeID"] not in under_notice
            and self._labels.items() <= (node.get("Labels") or {}).items()
        )

    def close(self) -> None:
        """Leave the cluster; if it was started here, end all its processes."""
        if self._local is not None:
            self._local.close()
        else:
            leave_ray(())


def _connect(address: str, options: Mapping[str, Any]) -> Any:
    check_head(address)
    with tempfile.TemporaryDirectory() as staged:
        shipped = stage(Path(staged), Path.cwd(), os.environ)
        return ray.init(address=address, runtime_env=shipped, **options)
