"""Nodes that Ray was told will be taken away: spot instances under notice, and nodes that somebody drains."""

from __future__ import annotations

import time
from collections.abc import Collection

from ray._private.state import state
from ray.exceptions import RayError

LOOK_EVERY_S = 2.0
"""The shortest notice that clouds give is 30 s."""


def leaving() -> frozenset[str]:
    """The ids of these nodes; they take no new work, and what runs there ends with them."""
    try:
        return frozenset(state.get_draining_nodes())
    except RayError:  # the head is too busy, or gone: that is told elsewhere
        return frozenset()


class DrainNotice:
    """Whether nodes are under notice, asked no more often than needed."""

    def __init__(self) -> None:
        self._ask_at = 0.0

    def of(self, nodes: Collection[str]) -> frozenset[str]:
        """Which of these nodes are leaving; none where it is not time to ask again."""
        if time.monotonic() < self._ask_at:
            return frozenset()
        self._ask_at = time.monotonic() + LOOK_EVERY_S
        return leaving() & frozenset(nodes)
