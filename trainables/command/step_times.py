"""The time of an epoch by the arrival of its lines, and of a step by printed seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

SHORTEST_S = 1.0
"""The shortest window that gives a time: lines are read every 0.1 s, and may leave a buffer all at once."""

TOGETHER_S = 0.05  # lines that arrive within this time were read together


class EpochClock:
    """The time from the last line of the first epoch to that of the last: without start-up, with evaluation."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._arrival_s: dict[float, float] = {}  # the arrival of each epoch's last line
        self._first = self._last = math.nan  # the first and the latest number, as the program counts
        self._earlier = 0.0  # what the numbers of earlier phases add

    def seen(self, epoch: float, at_s: float | None = None) -> bool:
        """Record that a line of this epoch has arrived, now or at `at_s`; return whether an epoch begins with it."""
        if self._first < epoch < self._last:  # about an earlier epoch, such as the best one
            return False
        if epoch < self._last:  # a phase that counts anew
            numbers = sorted(self._arrival_s)
            self._earlier = numbers[-1] + (numbers[1] - numbers[0] if len(numbers) > 1 else 1.0) - epoch
        begins = epoch != self._last
        if math.isnan(self._first):
            self._first = epoch
        self._last = epoch
        self._arrival_s[self._earlier + epoch] = self._clock() if at_s is None else at_s
        return begins

    @property
    def epochs(self) -> float:
        """The epochs from the first line to the last, including unreported ones between them."""
        numbers = sorted(self._arrival_s)
        if len(numbers) < 2:
            return len(numbers)
        # The first line comes at the end of its interval, wherever the program begins to count.
        first_interval = numbers[1] - numbers[0]
        return numbers[-1] - numbers[0] + first_interval

    def work(self, asked: float | None) -> float:
        """Return how many of the `asked` epochs were trained, as far as the lines tell; 0 without a line."""
        if len(self._arrival_s) < 2:
            return max([1.0, *self._arrival_s]) if self._arrival_s else 0.0
        numbers = self._arrival_s.keys()
        interval = (max(numbers) - min(numbers)) / (len(numbers) - 1)
        # A program that reports every fifth epoch may have no line for the last ones.
        if asked is not None and self.epochs + interval > asked:
            return max(self.epochs, asked)
        return self.epochs

    def figures(self) -> dict[str, float]:
        """Return `epoch_s`, the mean, and its `window_s`; {} if the lines do not tell.

        A median would show the interval at which lines are read.
        """
        gaps_s = [after - before for before, after in pairwise(sorted(self._arrival_s.values()))]
        if not gaps_s:
            return {}
        # A buffer releases many lines at once, and then none for a while.
        is_held_back = sum(gap < TOGETHER_S for gap in gaps_s) > len(gaps_s) / 2 and max(gaps_s) >= SHORTEST_S
        first, last = min(self._arrival_s), max(self._arrival_s)
        window_s = self._arrival_s[last] - self._arrival_s[first]
        is_short = is_held_back or window_s < SHORTEST_S
        return {} if is_short else {"epoch_s": window_s / (last - first), "window_s": window_s}


_UNREPORTED = 2.0
"""If the lines span more than this multiple of the reported time, some steps were probably not reported."""


class StepTimes:
    """The seconds of steps, from the second line on: the first includes start-up.

    A line counts for all steps since the line before it, or for one step if lines have no step numbers.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines = 0
        self._number: float | None = None  # the number of the last line's step
        self._is_numbered = False
        self._first_s = self._last_s = 0.0  # the arrival of the first and of the last line
        self._steps = self._seconds = 0.0

    def add(self, seconds: float, number: float | None) -> None:
        """Record a line that has just reported the seconds of a step, and its number if known."""
        self._last_s = self._clock()
        steps = 1.0
        if number is not None and self._number is not None:
            # A lower number begins a new count, as in each epoch. The same one is that of another process or drawing.
            steps = max(1.0, number) if number < self._number else number - self._number
        if self._lines == 0:
            self._first_s = self._last_s
        else:
            self._steps += steps
            self._seconds += steps * seconds
        self._lines += 1
        self._number = number
        self._is_numbered = self._is_numbered or number is not None

    def figures(self) -> dict[str, float]:
        """Return `window_s` and `window_steps`; {} after a single line."""
        return {"window_s": self._seconds, "window_steps": self._steps} if self._steps else {}

    def remarks(self) -> Iterator[str]:
        """Yield what to change if only some steps seem to be reported."""
        passed_s = self._last_s - self._first_s
        if not self._is_numbered and self._steps and passed_s >= _UNREPORTED * self._seconds:
            yield (
                f"step_s was reported {self._lines} times in {passed_s:.1f} s, and counts as {self._seconds:.2g} s of"
                " training: if only some steps are reported, trainable.step_pattern='step ([0-9]+)' reads which; all"
                " between then count"
            )
