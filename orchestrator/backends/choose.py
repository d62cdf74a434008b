"""Chooses and starts the back end that a request names."""

from __future__ import annotations

import os
import socket
import sys

from orchestrator.backends.backend import BEHIND, Backend, ClusterSpec, EarlyStopping, Limits, RunSettings
from orchestrator.backends.ray.token import require_token, show_token_if_any, token_file
from orchestrator.config.request import Request
from orchestrator.schedule.cluster import Node
from orchestrator.store.secrets import NO_SECRETS, Secrets
from orchestrator.telemetry.cpu import this_machine
from orchestrator.telemetry.sampler import Sampling
from sweeps.errors import ConfigError

REACH_S = 10.0
"""Seconds that a cluster's head may take to accept a connection; Ray itself would try for a quarter of an hour."""


def check_extensions(request: Request) -> None:
    """Raise ConfigError if a callback of the config's section `tune` cannot be created."""
    if request.tune["callbacks"]:
        from orchestrator.backends.ray.tune_extensions import Extensions

        Extensions.of(request.tune)


def check_reachable(request: Request) -> None:
    """Raise ConfigError if the address is not a cluster head's or nothing listens there; Ray resolves `auto` itself.

    Raise it also if this program is already connected to Ray, because a process can have only one connection.
    """
    if request.cluster.backend != "ray":
        return
    ray = sys.modules.get("ray")  # a program that has not imported it is not connected
    if ray is not None and ray.is_initialized():
        reason = "this program is already connected to Ray, and a process can have only one connection"
        raise ConfigError([f"{reason}: call ray.shutdown() first, or run the sweep in another process"])
    key, address = _address(request)
    if "://" in address:  # Ray's client, or where jobs are submitted, which RAY_ADDRESS may name for `ray job`
        reason = "not the address of a cluster's head: give HOST:6379, or auto on the head; `ray job submit` needs none"
        raise ConfigError([f"{key}={address} is {reason}"])
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise ConfigError([f"{key}={address}: no cluster answers there ({error})"]) from error


def known_nodes(request: Request) -> tuple[Node, ...] | None:
    """Return the nodes if they are known without starting anything; None if only a cluster knows them."""
    if request.cluster.backend == "inprocess":
        from orchestrator.backends.inprocess import slot

        return (slot(),)
    return None if _address(request)[1] else (this_machine(),)


def make_backend(request: Request, secrets: Secrets = NO_SECRETS) -> Backend:
    """Start the chosen back end. Raises ConfigError if no cluster answers at the given address.

    `secrets` are hidden from callbacks and from Tune's copy of the results.
    """
    after, metric = request.early_stop_after, request.metric
    behind = BEHIND * request.settings.report.margin
    settings = RunSettings(
        early_stopping=(
            EarlyStopping(after=after, behind=behind, metric=metric.name, sign=metric.sign) if after else None
        ),
        workers=request.cluster.workers,
        limits=Limits(hang_s=request.settings.hang_s, time_limit_s=request.settings.time_limit_s),
        sampling=Sampling(hz=request.settings.telemetry.hz),
    )
    if request.cluster.backend == "inprocess":
        from orchestrator.backends.inprocess import InProcessBackend

        return InProcessBackend(settings)
    key, address = _address(request)
    if address:
        show_token_if_any()
    else:
        require_token()
    from orchestrator.backends.ray.backend import RayBackend
    from orchestrator.backends.ray.tune_extensions import Extensions

    try:
        return RayBackend(_cluster(request), settings=settings, extensions=Extensions.of(request.tune, secrets))
    except ConnectionError as error:
        hint = f"; if the cluster demands another token: RAY_AUTH_TOKEN, or {token_file()}"
        raise ConfigError([f"{key}: {error}{hint if 'Failed to connect' in str(error) else ''}"]) from error


def _address(request: Request) -> tuple[str, str]:
    """Return the setting that has a cluster's address, and the address; empty if Ray is to be started here."""
    own, environment = request.cluster.address, os.environ.get("RAY_ADDRESS")
    return ("RAY_ADDRESS", environment) if environment and not own else ("cluster.address", own or "")


def _cluster(request: Request) -> ClusterSpec:
    here = this_machine()
    return ClusterSpec(
        address=request.cluster.address,
        dashboard=request.cluster.dashboard,
        cpus=int(here.cpus),
        gpus=int(here.gpus),
        labels=request.cluster.labels,
        asks=request.cluster.wait_s > 0,
        verbose=request.settings.verbose,
    )
