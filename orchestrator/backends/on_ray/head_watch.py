"""Watches the cluster's head from a thread of its own: without the head, calls of Ray wait forever."""

from __future__ import annotations

import socket
import threading
import time

import ray

from orchestrator.text.last_words import leave, to_stderr

LOOK_EVERY_S = 2.0
REACH_S = 5.0
PATIENCE_S = 30.0
"""A head that restarts within this time and has kept its state was merely busy."""


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
                to_stderr(self._last_words())
                leave(1)

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=REACH_S).close()
        except OSError:
            return False
        return True

    def _last_words(self) -> str:
        where = f"{self._address[0]}:{self._address[1]}"
        return (
            f"the head of the Ray cluster at {where} has not answered for {PATIENCE_S:g} s: nothing can go on without "
            "it. What is in the journal is safe, and the same command continues."
        )
