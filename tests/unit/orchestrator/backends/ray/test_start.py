import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.backends.backend import ClusterSpec
from orchestrator.backends.ray import cluster

NO_SUCH_NODE = """
from orchestrator.backends.ray import cluster
from orchestrator.backends.backend import NotStartedError

try:
    cluster._start({"num_cpus": -1, "include_dashboard": False})
except NotStartedError as error:
    print(error)
"""
TOO_LATE_ONCE = """
import psutil
import ray
from ray._private import services
from orchestrator.backends.ray.cluster import Cluster
from orchestrator.backends.backend import ClusterSpec

found, asked = services.get_node, []


def get_node(*given):
    asked.append(given)
    if len(asked) == 1:
        raise Exception("The current node timed out during startup. Ray says more.")
    return found(*given)


services.get_node = get_node
cluster = Cluster(ClusterSpec(dashboard=False, cpus=1, gpus=0))
heads = [each for each in psutil.Process().children(recursive=True) if each.name().startswith("gcs_server")]
print(len(cluster.nodes()), len(heads))
cluster.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "told"),
    [(NO_SUCH_NODE, "Ray could not be started"), (TOO_LATE_ONCE, "1 1")],
    ids=["never", "too late once"],
)
def test_failed_start_is_reported_or_retried(code: str, told: str) -> None:
    """Start it in another process, because Ray does not clean up a process in which it failed to start."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    (line,) = ended.stdout.splitlines()
    assert line.startswith(told)


def test_start_restores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that runs a sweep may start another Ray afterwards."""
    seen: dict[str, str] = {}

    def init(**given: Any) -> SimpleNamespace:
        seen.update(os.environ)
        return SimpleNamespace(dashboard_url="")

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.setattr(cluster, "keep_token_private", lambda file: None)
    before = dict(os.environ)
    cluster._start({})
    assert seen["RAY_worker_niceness"] == "0"
    assert os.environ == before


def test_leaving_a_cluster_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that the program around the sweep starts in another thread, while this one connects."""
    started: list[subprocess.Popen[bytes]] = []

    def connect(*given: Any) -> SimpleNamespace:
        started.append(subprocess.Popen(["sleep", "60"]))
        return SimpleNamespace(dashboard_url="")

    monkeypatch.setattr(cluster, "_connect", connect)
    cluster.Cluster(ClusterSpec(address="10.0.0.1:6379")).close()
    (process,) = started
    assert process.poll() is None
    process.kill()
    process.wait()


def test_own_folders_are_those_without_installed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a project beside the environment of its name, or below /usr, where Python itself is."""
    beside, below = tmp_path / "venv-project", tmp_path / "venv/src/app"
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    for folder in (beside, below, packages):
        folder.mkdir(parents=True)
    monkeypatch.setattr(cluster.sys, "prefix", str(tmp_path / "venv"))
    stdlib = sysconfig.get_path("stdlib")
    path = ["", str(beside), str(below), stdlib, f"{stdlib}/lib-dynload", str(packages), str(tmp_path / "absent")]
    monkeypatch.setattr(cluster.sys, "path", path)
    assert cluster._own_folders() == [str(below), str(beside)]
