"""Ends a trial that runs in this process and has exceeded its time."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

from orchestrator.backends.watch import Limits, Overdue, Watch

_AGAIN_S = 0.05


class OverdueError(BaseException):
    """Raised inside the trial, wherever it is; not an Exception, so that the trial's own handlers do not catch it."""

    def __init__(self, overdue: Overdue) -> None:
        self.overdue = overdue
        super().__init__(overdue.note)


class Alarm:
    """Context manager that raises OverdueError in the main thread once the limits are exceeded.

    Python code and waiting calls of the operating system are interrupted; C code that computes is when it returns.
    Without limits, and outside the main thread, nothing is watched.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._moves = 0
        self.held = False
        """True while the driver's own code runs, which must not be interrupted: the alarm waits until it is done."""

    def moved(self) -> None:
        """The trial took a step or reported a row."""
        self._moves += 1

    def __enter__(self) -> Alarm:
        self._watch = Watch(self._limits, ranks=1, now=time.monotonic())
        watched = self._limits != Limits() and threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGALRM, self._ring) if watched else None
        if watched:
            signal.setitimer(signal.ITIMER_REAL, self._next_s())
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def _next_s(self) -> float:
        return min(self._watch.look_again_s() or 10.0, self._limits.time_limit_s or 10.0)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._watch.heard({0: self._moves}, now)
        overdue = self._watch.overdue(now)
        if overdue is None:
            left_s = self._limits.time_limit_s
            signal.setitimer(signal.ITIMER_REAL, self._next_s() if left_s is None else min(self._next_s(), 1.0))
        elif self.held:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            raise OverdueError(overdue)
