"""The head of a Ray cluster: whether one answers at an address, before Ray connects, and whether it still does later.

Where something else listens, or what `auto` finds has ended since, `ray.init` would print a warning every few seconds
for a quarter of an hour. Without the head, calls of Ray wait forever: a thread of its own watches it.

Nodes that are about to be removed: spot instances under notice, and nodes being drained.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Collection

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray._private.state import state
from ray.exceptions import RayError

from orchestrator.exit import leave, to_stderr

ANSWER_S = 30.0
"""How long a busy head may take, asked before Ray connects."""

LOOK_EVERY_S = 2.0
REACH_S = 5.0
"""How often it is watched, and how long one look may take."""
PATIENCE_S = 30.0
"""A head that restarts within this time and has kept its state was merely busy."""


def check_head(address: str) -> None:
    """Raise ConnectionError, in one line, if no head answers. One that wants a token, or another one, has answered."""
    found = canonicalize_bootstrap_address(address)  # of `auto`: the cluster that was started here last
    if found is None:  # `auto` found none, which Ray says by itself
        return
    try:  # nothing of it is Ray's public interface
        import grpc
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest
        from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub
    except ImportError:  # another version of Ray, which then connects without having been asked
        return
    where = f"{found}, which auto stands for" if address == "auto" else address
    with init_grpc_channel(found) as channel:
        try:
            NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=ANSWER_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                told = f"what answers at {where} is not the head of a cluster of Ray {ray.__version__}"
                raise ConnectionError(told) from error
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise ConnectionError(f"no Ray cluster answers at {where}") from error


class HeadWatch:
    """Context manager that ends this process if the cluster's head is lost, because it could not end by itself.

    This is as safe as any other death of a driver: the journal holds what was acknowledged, the driver's watcher ends
    the processes it started, and the attempt does not count against the trials that were running.
    """

    def __init__(self) -> None:
        host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._over = threading.Event()

    def __enter__(self) -> HeadWatch:
        threading.Thread(target=self._watch, daemon=True, name="head watch").start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        heard = time.monotonic()
        while not self._over.wait(LOOK_EVERY_S):
            if self._answers():
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE_S and not self._over.is_set():
                to_stderr(self._exit_message())
                leave(1)

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=REACH_S).close()
        except OSError:
            return False
        return True

    def _exit_message(self) -> str:
        where = f"{self._address[0]}:{self._address[1]}"
        return (
            f"the head of the Ray cluster at {where} has not answered for {PATIENCE_S:g} s: nothing can go on without "
            "it. What is in the journal is safe, and the same command continues."
        )


def leaving() -> frozenset[str]:
    """The ids of the nodes about to be removed; they accept no new work, and their processes end with them."""
    try:
        return frozenset(state.get_draining_nodes())
    except RayError:  # the head is too busy, or gone: that is reported elsewhere
        return frozenset()


class DrainNotice:
    """Asks which nodes are under notice, at most once every LOOK_EVERY_S."""

    def __init__(self) -> None:
        self._ask_at = 0.0

    def of(self, nodes: Collection[str]) -> frozenset[str]:
        """Which of these nodes are under notice; empty if it is not time to ask again."""
        if time.monotonic() < self._ask_at:
            return frozenset()
        self._ask_at = time.monotonic() + LOOK_EVERY_S
        return leaving() & frozenset(nodes)
