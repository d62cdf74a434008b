"""Checks that the head of a Ray cluster answers, before Ray connects and afterwards, and which nodes are being drained.

If no head answers, `ray.init` would print a warning every few seconds for a quarter of an hour, and later calls of Ray
would wait forever.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial

import ray

from orchestrator.backends.ray import private
from orchestrator.backends.ray.private import Answer
from orchestrator.end_process import leave, to_stderr

ANSWER_S = 30.0  # seconds that a busy head may take to answer, before Ray connects

LOOK_EVERY_S = 2.0
REACH_S = 5.0  # how often the head is checked, and how long one check may take
PATIENCE_S = 30.0  # a head may restart within this time without the driver ending


def check_head(address: str) -> None:
    """Raise ConnectionError, in one line, if no head answers; one that demands another token has answered."""
    try:
        head = private.found_address(address)
    except ValueError as error:
        raise ConnectionError(f"{error}: give HOST:6379, or auto on the head") from error
    if head is None:  # `auto` found no cluster, which Ray reports itself
        return
    place = f"{head}, which auto stands for" if address == "auto" else address
    answer = private.answer_at(head, ANSWER_S)
    if answer is Answer.OTHER:
        raise ConnectionError(f"what answers at {place} is not the head of a cluster of Ray {ray.__version__}")
    if answer is Answer.NONE:
        raise ConnectionError(f"no Ray cluster answers at {place}")


@contextmanager
def head_watched() -> Iterator[None]:
    """End this process if the cluster's head is lost within the context, because it could not end by itself.

    This is as safe as any other death of a driver: the journal holds what was acknowledged, the watcher ends the
    driver's processes, and the attempt is not charged to the running trials.
    """
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    over = threading.Event()
    watching = partial(_watch, (host.strip("[]"), int(port)), over)
    threading.Thread(target=watching, daemon=True, name="head watch").start()
    try:
        yield
    finally:
        over.set()


def _watch(address: tuple[str, int], over: threading.Event) -> None:
    heard = time.monotonic()
    while not over.wait(LOOK_EVERY_S):
        try:
            socket.create_connection(address, timeout=REACH_S).close()
            heard = time.monotonic()
        except OSError:
            if time.monotonic() - heard > PATIENCE_S and not over.is_set():
                to_stderr(
                    f"the head of the Ray cluster at {address[0]}:{address[1]} has not answered for "
                    f"{PATIENCE_S:g} s, so the sweep ends. The journal is safe, and the same command continues."
                )
                leave(1)


class DrainNotice:
    """Asks which nodes are about to be removed, at most once every LOOK_EVERY_S: drained ones and spot instances."""

    def __init__(self) -> None:
        self._ask_at = 0.0

    def of(self, nodes: Collection[str]) -> frozenset[str]:
        """Return those of these nodes that are about to be removed; empty if it is not time to ask again."""
        if time.monotonic() < self._ask_at:
            return frozenset()
        self._ask_at = time.monotonic() + LOOK_EVERY_S
        return private.draining_nodes() & frozenset(nodes)
