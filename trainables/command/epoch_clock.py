"""How long an epoch takes by when a command tells of it, for a command that prints no times."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

SHORTEST_S = 1.0
"""A window below it tells nothing: lines are read every tenth of a second, and may come all at once from a buffer."""

TOGETHER_S = 0.05
"""Lines that come within it were read at once."""


class EpochClock:
    """From the last line of the first epoch to the last line of the last: start-up left out, evaluation not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen_s: dict[float, float] = {}

    def seen(self, epoch: float) -> None:
        """A line of this epoch has come just now."""
        self._seen_s[epoch] = self._clock()

    @property
    def epochs(self) -> float:
        """How many there were: those that were told of, and those between where only some were."""
        if len(self._seen_s) < 2:
            return len(self._seen_s)
        between = max(self._seen_s) - min(self._seen_s)
        return between + between / (len(self._seen_s) - 1)

    def figures(self) -> dict[str, float]:
        """`epoch_s`, the mean (a median would show how seldom lines are read), and the `window_s` it is of.

        Nothing where fewer than two epochs were told of, the window is too short to be one, or a buffer held them back.
        """
        if len(self._seen_s) < 2 or self._came_in_heaps():
            return {}
        first, last = min(self._seen_s), max(self._seen_s)
        window_s = self._seen_s[last] - self._seen_s[first]
        return {"epoch_s": window_s / (last - first), "window_s": window_s} if window_s >= SHORTEST_S else {}

    def _came_in_heaps(self) -> bool:
        """Whether most came at once with others, after silence: the first would count from the end of its heap."""
        gaps = [after - before for before, after in pairwise(sorted(self._seen_s.values()))]
        return sum(gap < TOGETHER_S for gap in gaps) > len(gaps) / 2 and max(gaps) >= SHORTEST_S
