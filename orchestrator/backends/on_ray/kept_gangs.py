"""Gangs that are kept from one trial to the next: which ones, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from ray.tune.utils.object_cache import _ObjectCache


class KeptGangs(_ObjectCache):  # type: ignore[misc]
    """Keeps every gang whose trial has ended until the queue has had its turn to give it another one.

    Tune drops it at once where it waits for any gang of another shape to start, which takes seconds: meanwhile one
    gang after the other would have to be started anew, though the next trial is of its shape. A gang that was not
    taken at the queue's next turn makes room for what waits on one of its nodes, and else for nobody: what waits for a
    node that is lost, say, has no use for it.
    """

    def __init__(self, needed: Callable[[], bool] = lambda: True) -> None:
        """`needed`: whether anything could take a kept gang; else its nodes are let go, for others or to save them."""
        super().__init__()
        self._needed = needed
        self._new: list[Any] = []

    def cache_object(self, key: Any, obj: Any) -> bool:
        """Keep it; always possible."""
        self._cached_objects[key].append(obj)
        self._num_cached_objects += 1
        self._new.append(obj)
        return True

    def flush_cached_objects(self, force_all: bool = False) -> Generator[Any, None, None]:
        """The gangs that are to end now; Tune asks after every turn of the queue."""
        new, self._new = self._new, []
        unneeded = force_all or not self._needed()
        waiting = [key for key, count in self._max_num_objects.items() if count > 0]
        for key, kept in self._cached_objects.items():
            if not unneeded and not any(key.may_hold(each) for each in waiting):
                continue
            wanted = 0 if unneeded else self._max_num_objects.get(key, 0)
            old = [each for each in kept if force_all or not any(each is one for one in new)]
            for each in old[: max(0, len(kept) - wanted)]:
                kept.remove(each)
                self._num_cached_objects -= 1
                yield each
