import os
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from orchestrator.backends.ray import cluster, local_cluster
from orchestrator.backends.ray.local_cluster import PREFIX, LocalCluster, PrivateFolder, remove_stale
from orchestrator.config.settings import ClusterSection, Settings
from orchestrator.schedule.cluster import Node

NO_SUCH_NODE = """
from orchestrator.backends.ray.local_cluster import LocalCluster
from orchestrator.backends.backend import NotStartedError

try:
    LocalCluster({"num_cpus": -1, "include_dashboard": False})
except NotStartedError as error:
    print(error)
"""
TOO_LATE_ONCE = """
import psutil
import ray
from ray._private import services
from orchestrator.backends.ray.cluster import Cluster
from orchestrator.config.settings import ClusterSection, Settings
from orchestrator.schedule.cluster import Node

found, asked = services.get_node, []


def get_node(*given):
    asked.append(given)
    if len(asked) == 1:
        raise Exception("The current node timed out during startup. Ray says more.")
    return found(*given)


services.get_node = get_node
cluster = Cluster(Settings(cluster=ClusterSection(dashboard=False)), Node(name="here", cpus=1, gpus=0))
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
def test_failed_start_is_reported_or_retried(code, told):
    """Start it in another process, because Ray does not clean up a process in which it failed to start."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"RAY_TMPDIR": short},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        (line,) = ended.stdout.splitlines()
        assert line.startswith(told) and os.listdir(short) == []


def test_start_restores_the_environment(monkeypatch):
    """A program that runs a sweep may start another Ray afterwards."""
    seen: dict[str, str] = {}

    def init(**given):
        seen.update(os.environ)
        return SimpleNamespace(dashboard_url="")

    monkeypatch.setattr(local_cluster.ray, "init", init)
    monkeypatch.setattr(local_cluster, "keep_token_private", lambda file: None)
    before = dict(os.environ)
    LocalCluster({}).close()
    assert seen["RAY_worker_niceness"] == "0"
    assert os.environ == before


def test_leaving_a_cluster_ends_no_process(monkeypatch):
    """As a process that the program around the sweep starts in another thread, while this one connects."""
    started: list[subprocess.Popen[bytes]] = []

    def connect(*given):
        started.append(subprocess.Popen(["sleep", "60"]))
        return SimpleNamespace(dashboard_url="")

    monkeypatch.setattr(cluster, "_connect", connect)
    settings = Settings(cluster=ClusterSection(address="10.0.0.1:6379"))
    cluster.Cluster(settings, Node(name="here", cpus=1, gpus=0)).close()
    (process,) = started
    assert process.poll() is None
    process.kill()
    process.wait()


def test_own_folders_are_those_without_installed_code(tmp_path, monkeypatch):
    """As a project beside the environment of its name, or below /usr, where Python itself is."""
    beside, below = tmp_path / "venv-project", tmp_path / "venv/src/app"
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    for folder in (beside, below, packages):
        folder.mkdir(parents=True)
    monkeypatch.setattr(local_cluster.sys, "prefix", str(tmp_path / "venv"))
    stdlib = sysconfig.get_path("stdlib")
    path = ["", str(beside), str(below), stdlib, f"{stdlib}/lib-dynload", str(packages), str(tmp_path / "absent")]
    monkeypatch.setattr(local_cluster.sys, "path", path)
    assert local_cluster._own_folders() == [str(below), str(beside)]


@pytest.fixture
def short(monkeypatch):
    """A folder for temporary files whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def test_folder_is_private_and_removed(short):
    folder = PrivateFolder()
    folder.for_ray.mkdir(mode=0o777)
    assert folder.path.parent == short and stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.remove()
    assert os.listdir(short) == []


def test_only_folders_of_dead_drivers_are_removed(short):
    code = "import os, sys; from orchestrator.backends.ray.local_cluster import PrivateFolder\n"
    code += (
        "folder = PrivateFolder(); (folder.path / 'log').write_text(''); print(folder.path, flush=True); os._exit(9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60).stdout.strip()
    assert os.listdir(killed) == ["log"]
    other, link = short / "other", short / f"{PREFIX}link"
    other.mkdir()
    link.symlink_to(other)
    first = PrivateFolder()
    second = PrivateFolder()
    assert sorted(short.iterdir()) == sorted([first.path, second.path, other, link])
    first.remove()
    remove_stale(short)
    assert sorted(short.iterdir()) == sorted([second.path, other, link])
    second.remove()


@pytest.mark.parametrize("unsuitable", ["long", "absent"])
def test_folder_with_a_long_path_is_not_used(short, unsuitable, monkeypatch):
    given = short / (unsuitable if unsuitable == "absent" else "long" * 20)
    if unsuitable == "long":
        given.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(given))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    folder = PrivateFolder()
    assert folder.path.parent == short
    folder.remove()


def test_folders_without_room_are_told(short, monkeypatch):
    monkeypatch.setattr(local_cluster.shutil, "disk_usage", lambda place: SimpleNamespace(free=9_000_000))
    with pytest.raises(OSError, match=f"{short} has 9.0 MB free"):
        PrivateFolder()


class Stopped:
    """`ray.shutdown` as it is while a raylet is stopped: it returns once that process is dead."""

    def __init__(self):
        self.raylet = subprocess.Popen(["sleep", "600"])
        self.raylet.send_signal(signal.SIGSTOP)
        self.returned = threading.Event()

    def __call__(self):
        self.raylet.wait()
        self.returned.set()


def test_shutdown_kills_stopped_processes(monkeypatch):
    stopped = Stopped()
    monkeypatch.setattr(local_cluster.ray, "shutdown", stopped)
    monkeypatch.setattr(local_cluster, "RAY_SHUTDOWN_S", 0.2)
    local_cluster.leave_ray([psutil.Process(stopped.raylet.pid)])
    assert stopped.returned.wait(60)
