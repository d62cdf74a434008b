"""Connects to a Ray cluster: an existing one, or one that is started here and ended afterwards.

An existing cluster gets the code with the connection, so that none of it has to be installed on the nodes.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray

from orchestrator.backends.backend import ClusterSpec, NotStartedError
from orchestrator.backends.ray import private
from orchestrator.backends.ray.head import check_head
from orchestrator.backends.ray.token import keep_token_private, token_file
from orchestrator.config.fingerprint import is_installed, python_files
from orchestrator.schedule.cluster import Node

NODE_ID = "ray.io/node-id"
"""Ray's label that identifies a node, even if a host has several."""


CODE = Path(__file__).parents[3]
"""The folder that contains the four packages."""

_ROOMS = ("sweeps", "trainables", "orchestrator", "studies")


def stage(target: Path, here: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Copy the code into `target`; returns the runtime_env that ships it.

    It consists of the four packages and the Python files of the user's folder `here`, without hidden files, virtual
    environments, data and results. A submitted job already has its own folder on the nodes.
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
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def handler_kept(number: int) -> Iterator[None]:
    """Restore the handler of this signal, which Ray replaces. Both are possible in the main thread only."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, before)


@contextmanager
def blocked_in_children(number: int) -> Iterator[None]:
    """Block this signal in processes that this thread starts; this process still receives it, in another thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_LOCAL = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray would run trials at a lower priority than other processes
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the future default; without it there is a warning in every log
}
_END_S = 5.0
STARTS = 2
"""How many attempts to start Ray, each of which may exceed Ray's own limit of half a minute."""
_TOO_LATE = "timed out during startup"
_GPU = "accelerator_type:"


class Cluster:
    """A connection to Ray."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._labels, verbose = spec.labels, spec.verbose
        logging.getLogger("ray").setLevel(logging.INFO if verbose else logging.ERROR)
        if not verbose:
            private.hide_worker_deaths()
        shared: dict[str, Any] = {
            "log_to_driver": verbose,
            "logging_level": logging.INFO if verbose else logging.ERROR,
        }
        private.reload_authentication()
        before = set(psutil.Process().children())
        address = spec.address or os.environ.get("RAY_ADDRESS")
        with handler_kept(signal.SIGTERM), private.sigterm_unhandled():
            if address:
                context = _connect(address, shared)
            else:
                local = {"num_cpus": spec.cpus, "num_gpus": spec.gpus, "include_dashboard": spec.dashboard}
                context = _start(local | shared)
        self.dashboard_url: str = f"http://{context.dashboard_url}" if context.dashboard_url else ""
        # None of the processes of an existing cluster is ours, whatever this program started meanwhile.
        self._started = set() if address else set(psutil.Process().children()) - before

    def nodes(self) -> tuple[Node, ...]:
        """Return the live nodes with the requested labels that are not about to be removed, with all resources."""
        under_notice = private.draining_nodes()
        return tuple(
            Node(
                name=node["NodeManagerHostname"],
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
                gpu_type=next((name.removeprefix(_GPU) for name in node["Resources"] if name.startswith(_GPU)), ""),
                node_id=node["NodeID"],
            )
            for node in ray.nodes()
            if node["Alive"]
            and node["NodeID"] not in under_notice
            and self._labels.items() <= (node.get("Labels") or {}).items()
        )

    def close(self) -> None:
        """Leave the cluster; if it was started here, end all its processes."""
        ours = _trees(self._started)
        ray.shutdown()
        _, alive = psutil.wait_procs(ours, timeout=_END_S)
        _kill(alive)


def _connect(address: str, options: Mapping[str, Any]) -> Any:
    check_head(address)
    with tempfile.TemporaryDirectory() as staged:
        shipped = stage(Path(staged), Path.cwd(), os.environ)
        return ray.init(address=address, runtime_env=shipped, **options)


def _start(options: Mapping[str, Any]) -> Any:
    keep_token_private(token_file())
    imports = private.job_importing_from([*_own_folders(), str(CODE)])
    before = set(psutil.Process().children())
    for _ in range(STARTS):
        try:
            with (
                environment(_LOCAL),
                private.fewer_processes(log_monitor=bool(options.get("log_to_driver"))),
                blocked_in_children(signal.SIGHUP),  # a closed terminal sends it to all; Ray handles Ctrl-C itself
            ):
                return ray.init(address="local", dashboard_host="127.0.0.1", job_config=imports, **options)
        except Exception as error:  # Ray has no narrower class for a node that takes too long
            ray.shutdown()
            _kill(_trees(set(psutil.Process().children()) - before))
            failure = error
            if _TOO_LATE not in str(error):
                break
    message = " ".join(str(failure).split())
    raise NotStartedError(
        f"Ray could not be started here: {message} (if the machine is busy, try again later)"
    ) from failure


def _own_folders() -> list[str]:
    """Return the folders from which the driver imports code that is not installed, such as the folder of a script.

    In reverse order, because workers insert one after the other at the front of their path.
    """
    pythons_own = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    return [
        path
        for path in reversed(sys.path)
        if path and os.path.isdir(path) and not is_installed(Path(path))
        if not any(Path(path).is_relative_to(each) for each in pythons_own)
    ]


def _trees(started: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return these processes and all their descendants."""
    found: list[psutil.Process] = []
    for process in started:
        with suppress(psutil.NoSuchProcess):
            found += [process, *process.children(recursive=True)]
    return found


def _kill(processes: Collection[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_END_S)
