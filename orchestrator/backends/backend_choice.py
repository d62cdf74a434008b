"""Chooses and starts the back end that a request names, and waits for its first nodes."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.backends.backend import Backend
from orchestrator.backends.ray.token import require_token, show_token_if_any, token_file
from orchestrator.config.request import Request
from orchestrator.schedule.cluster import Node, can_run
from orchestrator.schedule.queue import patience_s
from orchestrator.store.secrets import NO_SECRETS, Secrets
from orchestrator.telemetry.cpu import this_machine
from sweeps.cluster_address import cluster_address
from sweeps.errors import ConfigError

A_NODE = Node(name="a node like the trials'", cpus=1024, gpus=8)
"""Stands for the nodes of a forecast: 8 GPUs are usual, and these cores cannot limit the trials."""
REACH_S = 10.0
"""Seconds that a cluster's head may take to accept a connection; Ray itself would try for a quarter of an hour."""


def check_extensions(request: Request) -> None:
    """Raise ConfigError if a callback of the config's section `tune` cannot be created."""
    if request.settings.tune.callbacks:
        from orchestrator.backends.ray.tune_extensions import Extensions

        Extensions.of(request.settings.tune)


def check_reachable(request: Request) -> None:
    """Raise ConfigError if the address is not a cluster head's or nothing listens there; Ray resolves `auto` itself.

    Raise it also if this program is already connected to Ray.
    """
    if request.settings.backend != "ray":
        return
    ray = sys.modules.get("ray")  # a program that has not imported it is not connected
    if ray is not None and ray.is_initialized():
        reason = "this program is already connected to Ray, and a process can have only one connection"
        raise ConfigError([f"{reason}: call ray.shutdown() first, or run the sweep in another process"])
    key, address = cluster_address(request.settings.backend, request.settings.cluster.address)
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
    if request.settings.shapes_of:
        gpus = request.settings.cluster.gpus_per_node or A_NODE.gpus
        return (replace(A_NODE, gpus=gpus, gpu_type=request.settings.shapes_of),)
    if request.settings.backend == "inprocess":
        from orchestrator.backends.inprocess import slot

        return (slot(),)
    _, address = cluster_address(request.settings.backend, request.settings.cluster.address)
    return None if address else (this_machine(),)


def make_backend(request: Request, secrets: Secrets = NO_SECRETS) -> Backend:
    """Start the chosen back end. Raises ConfigError if no cluster answers at the given address.

    `secrets` are hidden from callbacks and from Tune's copy of the results.
    """
    settings = request.settings
    if settings.backend == "inprocess":
        from orchestrator.backends.inprocess import InProcessBackend

        return InProcessBackend(settings)
    key, address = cluster_address(settings.backend, settings.cluster.address)
    if address:
        show_token_if_any()
    else:
        # A cluster that is started here would otherwise run the code of anyone who reaches its port.
        require_token()
    from orchestrator.backends.ray.backend import RayBackend
    from orchestrator.backends.ray.tune_extensions import Extensions

    try:
        return RayBackend(request, this_machine(), extensions=Extensions.of(settings.tune, secrets))
    except ConnectionError as error:
        hint = f"; if the cluster demands another token: RAY_AUTH_TOKEN, or {token_file()}"
        raise ConfigError([f"{key}: {error}{hint if 'Failed to connect' in str(error) else ''}"]) from error


LOOK_EVERY_S = 0.5

NO_NODE_YET = Node(name="a node to come", cpus=64, gpus=64)
"""The first node of a cluster, before it is known: with GPUs, and few cores for each."""


def nodes_ready(nodes: Sequence[Node], request: Request, wait_s: float) -> bool:
    """Return whether a plan can be made: if GPUs are requested and may be waited for, a node must have some."""
    resources, cluster = request.settings.resources, request.settings.cluster
    needs_gpu = wait_s > 0 and (resources.device == "cuda" or bool(cluster.gpu_type))
    return any(node.gpus for node in nodes) if needs_gpu else can_run(nodes)


def first_nodes(
    backend: Backend,
    request: Request,
    wait_s: float,
    *,
    stopping: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Sequence[Node]:
    """Return the nodes as soon as they are ready, or `stopping`.

    After `patience_s`, return nodes that can run something else, if any. Else raise ConfigError.
    """
    cluster = request.settings.cluster
    began_s, limit_s = clock(), patience_s(wait_s)
    while not nodes_ready(nodes := backend.nodes(), request, wait_s) and not stopping():
        if clock() - began_s >= limit_s:
            # Better some trials than none: those that fit run, and the others are reported as infeasible.
            if can_run(nodes):
                return nodes
            name = f"cluster.address={cluster.address}" if cluster.address else "Ray"
            labels = f" with the labels {dict(cluster.labels)}" if cluster.labels else ""
            state = f"none of {len(nodes)} nodes{labels} has CPUs" if nodes else f"no node{labels} is alive"
            raise ConfigError([f"{name}: {state}, and none came within {limit_s:g} s (cluster.wait_s waits longer)"])
        sleep(LOOK_EVERY_S)
    return nodes
