"""Connects to a Ray cluster: an existing one, or one that is started here and ended afterwards."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import parameter, ray_logging
from ray._private import utils as ray_utils
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
from ray.job_config import JobConfig

from orchestrator.backends.backend import NotStartedError
from orchestrator.backends.on_ray.cluster_spec import ClusterSpec
from orchestrator.backends.on_ray.drain_notice import leaving
from orchestrator.backends.on_ray.head import check_head
from orchestrator.backends.on_ray.import_ahead import PREPARE, preloading
from orchestrator.backends.on_ray.runtime_env import CODE, stage
from orchestrator.backends.on_ray.start_ahead import at_once
from orchestrator.backends.on_ray.temporary import deaf_children, environment, handler_kept, patched
from orchestrator.backends.on_ray.token import keep_token_private, token_file
from orchestrator.config.own_code import is_installed
from orchestrator.scheduling.node import Node

_LOCAL = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray would run trials at a lower priority than other processes
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the future default; without it there is a warning in every log
}
_END_S = 5.0
STARTS = 2
"""How many attempts to start Ray, each of which may exceed Ray's own limit of half a minute."""
_TOO_LATE = "timed out during startup"
_ACCELERATOR = "accelerator_type:"


class Cluster:
    """A connection to Ray."""

    def __init__(self, spec: ClusterSpec, *, start_ahead: bool = False):
        """`start_ahead`: whether processes may start, and import what they need, before their gang's GPUs are free."""
        self._labels, verbose = spec.labels, spec.verbose
        logging.getLogger("ray").setLevel(logging.INFO if verbose else logging.ERROR)
        if not verbose:  # Ray reports every process that dies, whatever log_to_driver is
            ray_logging.stdout_deduplicator.skip_re = re.compile("")
        shared: dict[str, Any] = {
            "log_to_driver": verbose,
            "logging_level": logging.INFO if verbose else logging.ERROR,
        }
        _read_authentication_again()
        before = set(psutil.Process().children())
        address = spec.address or os.environ.get("RAY_ADDRESS")
        # While it connects, for seconds, Ray would exit at SIGTERM and leave its processes behind.
        left_to_us = patched(ray_utils, "set_sigterm_handler", lambda handler: None)
        with handler_kept(signal.SIGTERM), left_to_us:
            if address:
                context = _connect(address, shared, start_ahead)
            else:
                local = {"num_cpus": spec.cpus, "num_gpus": spec.gpus, "include_dashboard": spec.dashboard}
                may_be_ahead = bool(at_once(spec.cpus or os.cpu_count() or 1, ()))
                context = _start(local | shared, start_ahead and may_be_ahead)
        self.dashboard_url: str = f"http://{context.dashboard_url}" if context.dashboard_url else ""
        # None of the processes of an existing cluster is ours, whatever this program started meanwhile.
        self._started = set() if address else set(psutil.Process().children()) - before

    def nodes(self) -> tuple[Node, ...]:
        """The nodes that are alive, are not about to be removed and have the requested labels, with all resources."""
        under_notice = leaving()
        return tuple(
            Node(
                name=node["NodeManagerHostname"],
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
                gpu_type=_gpu_type(node["Resources"]),
                node_id=node["NodeID"],
            )
            for node in ray.nodes()
            if node["Alive"]
            and node["NodeID"] not in under_notice
            and self._labels.items() <= (node.get("Labels") or {}).items()
        )

    def close(self) -> None:
        """Leave the cluster; if it was started here, end all its processes."""
        ours = _families(self._started)
        ray.shutdown()
        _, alive = psutil.wait_procs(ours, timeout=_END_S)
        _kill(alive)


def _read_authentication_again() -> None:
    """Make Ray read again whether there is a token: the program may have imported Ray before the token was set."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _connect(address: str, options: Mapping[str, Any], start_ahead: bool = False) -> Any:
    check_head(address)
    hook = {"worker_process_setup_hook": PREPARE} if start_ahead else {}
    with tempfile.TemporaryDirectory() as staged:
        travels = stage(Path(staged), Path.cwd(), os.environ) | hook
        return ray.init(address=address, runtime_env=travels, **options)


def _start(options: Mapping[str, Any], start_ahead: bool = False) -> Any:
    keep_token_private(token_file())
    imports = JobConfig(_py_driver_sys_path=[*_own_folders(), str(CODE)])
    preload = preloading(os.environ, str(CODE)) if start_ahead else {}
    before = set(psutil.Process().children())
    for _ in range(STARTS):
        try:
            with (
                environment(_LOCAL | preload),
                _fewer_processes(log_monitor=bool(options.get("log_to_driver"))),
                deaf_children(signal.SIGHUP),  # a terminal that closes tells them, too; Ray sees to Ctrl-C by itself
            ):
                return ray.init(address="local", dashboard_host="127.0.0.1", job_config=imports, **options)
        except Exception as error:  # Ray has no narrower class for a node that takes too long
            ray.shutdown()
            _kill(_families(set(psutil.Process().children()) - before))
            failure = error
            if _TOO_LATE not in str(error):
                break
    message = " ".join(str(failure).split())
    raise NotStartedError(
        f"Ray could not be started here: {message} (if the machine is busy, try again later)"
    ) from failure


@contextmanager
def _fewer_processes(*, log_monitor: bool) -> Iterator[None]:
    """Make Ray start without processes that no sweep needs and that would compute next to timed trials.

    These are the autoscaler's monitor and the log monitor, a quarter of the CPU time of a start. The dashboard agent
    takes any free port: if its default port is taken, by another Ray on this machine, it would retry for seconds.
    `ray start` has options for all this, `ray.init` has no arguments.
    """
    made = parameter.RayParams
    wanted = {"no_monitor": True, "include_log_monitor": log_monitor, "dashboard_agent_listen_port": 0}
    known = {name: value for name, value in wanted.items() if name in signature(made).parameters}
    with patched(parameter, "RayParams", partial(made, **known)):
        yield


def _own_folders() -> list[str]:
    """Folders from which the driver imports code that is not installed, such as the folder of a script.

    In reverse order, because workers insert one after the other at the front of their path.
    """
    pythons_own = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    return [
        path
        for path in reversed(sys.path)
        if path and os.path.isdir(path) and not is_installed(Path(path))
        if not any(Path(path).is_relative_to(each) for each in pythons_own)
    ]


def _gpu_type(resources: Mapping[str, float]) -> str:
    return next((name.removeprefix(_ACCELERATOR) for name in resources if name.startswith(_ACCELERATOR)), "")


def _families(started: Iterable[psutil.Process]) -> list[psutil.Process]:
    """These processes and all their descendants."""
    return [each for process in started for each in _family(process)]


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(processes: Collection[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_END_S)
