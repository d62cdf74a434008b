"""Nodes that are about to be removed: spot instances under notice, and nodes being drained."""

from __future__ import annotations

import time
from collections.abc import Collection

from ray._private.state import state
from ray.exceptions import RayError

LOOK_EVERY_S = 2.0
"""Clouds give at least 30 s of notice."""


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
