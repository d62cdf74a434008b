"""The private names of Ray's core that this project uses; no other module uses any.

Checked with Ray 2.59.0 and 2.60.0; `test_private.py` inspects every name and fails if Ray changes one. Ray Tune's
private names are in `private_tune`, because importing Tune would double the start-up time of a gang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any

from ray._private import parameter, ray_constants, ray_logging, services
from ray._private import utils as ray_utils
from ray._private.state import state
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
from ray.exceptions import RayError
from ray.job_config import JobConfig


@contextmanager
def patched(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module temporarily, where Ray has no setting."""
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


def hide_worker_deaths() -> None:
    """Suppress Ray's messages on processes that died, which it prints whatever `log_to_driver` is."""
    ray_logging.stdout_deduplicator.skip_re = re.compile("")


def reload_authentication() -> None:
    """Make Ray look for the token again: the program may have imported Ray before the token was set."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def sigterm_unhandled() -> AbstractContextManager[None]:
    """Keep Ray from handling SIGTERM: while it connects, it would exit and leave its processes behind."""
    return patched(ray_utils, "set_sigterm_handler", lambda handler: None)


def no_environment_of_uv() -> AbstractContextManager[None]:
    """Keep Ray from starting each worker by `uv run` if the driver was started so.

    uv would find no project in the job's folder and use any Python. If this has no Ray, no trial ever starts.
    """
    return patched(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", False)


SESSION = "session"
"""Name of the folder with the session's logs and sockets; Ray's own would exceed the length of a socket's path."""


@contextmanager
def of_one_machine(*, log_monitor: bool) -> Iterator[None]:
    """Make `ray.init` start a cluster that no other machine reaches, with the processes that a sweep needs.

    Ray listens on the loopback alone if that is its node's address, but replaces this address by another one unless
    clusters are disabled. The autoscaler's monitor and the log monitor are left out: they take a quarter of the CPU
    time of a start, and would compute next to timed trials. The dashboard agent takes any free port: if another Ray
    on this machine has the default port, the agent would retry for seconds. Ray's processes get a session, because a
    signal to the driver's process group, as of `timeout` or a closed terminal, would end them before the sweep has
    ended in order. `ray.init` has no arguments for all this.
    """
    settings = {
        "no_monitor": True,
        "include_log_monitor": log_monitor,
        "dashboard_agent_listen_port": 0,
        "session_name": SESSION,
    }
    with (
        patched(ray_constants, "ENABLE_RAY_CLUSTER", False),
        patched(parameter, "RayParams", partial(parameter.RayParams, **settings)),
        patched(services, "ConsolePopen", partial(services.ConsolePopen, start_new_session=True)),
    ):
        yield


def job_importing_from(folders: Sequence[str]) -> JobConfig:
    """Return a job config whose workers import from these folders, too."""
    return JobConfig(_py_driver_sys_path=list(folders))


def draining_nodes() -> frozenset[str]:
    """Return the ids of the nodes that are about to be removed; empty if the head does not answer."""
    try:
        return frozenset(state.get_draining_nodes())
    except RayError:
        return frozenset()


class Answer(Enum):
    """The kind of server that answers at an address."""

    HEAD = "a cluster's head, even if it demands another token"
    OTHER = "another server of the same protocol"
    NONE = "nothing, or something that is no such server"


def found_address(address: str) -> str | None:
    """Return the address that `address` stands for: `auto` is the cluster last started here; None if there is none."""
    known: str | None = services.canonicalize_bootstrap_address(address)
    return known


def answer_at(address: str, timeout_s: float) -> Answer:
    """Ask for a cluster's id: `ray.init` itself would retry for a quarter of an hour."""
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest
    from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

    failures = {
        grpc.StatusCode.UNIMPLEMENTED: Answer.OTHER,
        grpc.StatusCode.UNAVAILABLE: Answer.NONE,
        grpc.StatusCode.DEADLINE_EXCEEDED: Answer.NONE,
    }
    with init_grpc_channel(address) as channel:
        try:
            NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            return failures.get(error.code(), Answer.HEAD)
    return Answer.HEAD
