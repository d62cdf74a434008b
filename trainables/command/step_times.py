"""How many steps, and how long together, the lines stand for that tell the seconds of one."""

from __future__ import annotations

import time
from collections.abc import Callable

_MANY = 2.0
"""Times as long as the steps that they tell: so much later than the first of the lines came the last."""


class StepTimes:
    """From the second line on: the first tells of start-up. Each stands for the steps since the one before it.

    That is one step where no numbers are told. Numbers that fall begin again, as in each epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines = 0
        self._number: float | None = None
        self._numbered = False
        self._began_s = self._latest_s = 0.0
        self._steps = 0.0
        self._seconds = 0.0

    def told(self, seconds: float, number: float | None) -> None:
        """A line has just told the seconds of a step, and of which, if `number` is known."""
        self._latest_s = self._clock()
        if self._lines:
            steps = _since(self._number, number)
            self._steps += steps
            self._seconds += steps * seconds
        else:
            self._began_s = self._latest_s
        self._lines += 1
        self._number = number
        self._numbered |= number is not None

    def figures(self) -> dict[str, float]:
        """`window_s` and `window_steps`; nothing of a single line."""
        return {"window_s": self._seconds, "window_steps": self._steps} if self._steps else {}

    def remark(self) -> str:
        """What to change where the lines seem to tell of some steps only; else empty."""
        passed_s = self._latest_s - self._began_s
        if self._numbered or not self._steps or passed_s < _MANY * self._seconds:
            return ""
        return (
            f"step_s was reported {self._lines} times in {passed_s:.1f} s, and counts as {self._seconds:.2g} s of"
            " training: if only some steps are reported, trainable.step_pattern='step ([0-9]+)' reads which; all"
            " between then count"
        )


def _since(before: float | None, now: float | None) -> float:
    if before is None or now is None:
        return 1
    return max(1, now - before if now >= before else now)
