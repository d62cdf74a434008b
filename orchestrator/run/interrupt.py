"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP) start a clean shutdown with a time limit.

A later Ctrl-C or SIGTERM ends the process at once. A later SIGHUP does not: a terminal that closes sends several.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrator.end_process import GRACE_S, leave, to_stderr

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INSISTING = (signal.SIGINT, signal.SIGTERM)  # signals that end the process at once if they are sent a second time

INTERRUPTED = tuple(128 + number for number in SIGNALS)
"""Exit statuses that shells expect of a process ended by these signals: 130, 143, 129."""

TOGETHER_S = 0.02
"""Signals that follow the first one within this time count as one: `timeout` signals a process, then its group."""

_STOPPING = "interrupted: stopping the running trials, then writing the tables; interrupt again to end at once"
_NOTHING_RUNS = "interrupted: no trial is running, the tables are being written; interrupt again to end at once"
_NOTHING_RAN = "interrupted while starting: no trial ran; run the same command to continue"
_OVER = b"\0"
_TOO_SLOW = "the tables are not finished, and all results are in the journal: mode=report makes them"


def end_at_once(number: int, frame: FrameType | None = None) -> None:
    """End the process with the signal's exit status; also usable as a signal handler."""
    leave(128 + number)


class Interrupt:
    """Context manager that remembers the first signal to arrive.

    Python's own handlers wait for the main thread, which may be inside Ray's code for seconds. So a thread is woken
    through a socket: it starts the time limit when the signal arrives, and sees a second signal at once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._say: Callable[[str], None] = to_stderr
        self._before: dict[int, object] = {}
        self._at_once = False
        self._message, self._late = _STOPPING, _TOO_SLOW

    @property
    def exit_status(self) -> int:
        """The exit status that shells expect of a process ended by the signal: one of INTERRUPTED."""
        assert self.signal is not None
        return 128 + self.signal

    @property
    def received(self) -> tuple[int, int]:
        """Two sockets for the driver's watcher: it finds a received signal in one of them, until this context ends."""
        return self._read_end, self._write_end

    def __enter__(self) -> Interrupt:
        global _current, _guarded
        if not _guarded:
            os.register_at_fork(after_in_child=_reset_in_child)
            _guarded = True
        ends = socket.socketpair()  # not a pipe: the driver's watcher looks at unread signals without taking them
        self._read_end, self._write_end = (end.detach() for end in ends)
        # Python's signal handler writes here, and must never wait.
        os.set_blocking(self._write_end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # started by `nohup`
        handled = [number for number in SIGNALS if not (outlives_terminal and number == signal.SIGHUP)]
        self._before = {number: signal.signal(number, self._remember) for number in handled}
        _current = self
        self._thread = threading.Thread(target=self._listen, daemon=True, name="signals")
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        global _current
        _current = None
        signal.set_wakeup_fd(self._wakeup_before)
        self.give_back()
        os.write(self._write_end, _OVER)
        # Before its socket is closed: a new file with that number would be read instead.
        self._thread.join()
        os.close(self._write_end)
        os.close(self._read_end)

    @contextmanager
    def said_by(self, say: Callable[[str], None] | None) -> Iterator[None]:
        """Context in which messages go through `say`, from a thread: a live table would overwrite any other output."""
        self._say = say or to_stderr
        try:
            yield
        finally:
            self._say = to_stderr

    @contextmanager
    def ends_at_once(self) -> Iterator[None]:
        """Context in which the first signal already ends the command: nothing runs yet that needs a clean shutdown.

        A program or notebook that calls `run_sweep` is not ended: there, another handler was installed before.
        """
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def nothing_runs(self) -> None:
        """Note that only tables are left to write, and change the message accordingly."""
        self._message = _NOTHING_RUNS

    def all_is_written(self) -> None:
        """Note that only Ray's processes are left to end, and say nothing if that exceeds the time limit."""
        self._late = ""

    def give_back(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _remember(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in the main thread, in case the thread has not run yet."""
        self.signal = self.signal or number

    def _listen(self) -> None:
        """The thread's main function: wait for the first signal, then for a second one or the end of the time limit."""
        number = self._next(None, SIGNALS)
        if not number:
            return
        self.signal = self.signal or number
        os.write(self._read_end, bytes([number]))  # nobody reads it: only the watcher looks at it
        if self._at_once and self._before[number] is end_at_once:
            to_stderr(_NOTHING_RAN)
            end_at_once(number)
        stop_by = time.monotonic() + GRACE_S
        if self._next(time.monotonic() + TOGETHER_S, ()) == 0:
            return
        # Another thread prints: the caller's way of printing may be slow and must not stop the clock.
        threading.Thread(target=self._say, args=(self._message,), daemon=True).start()
        again = self._next(stop_by, _INSISTING)
        if again:
            end_at_once(again)  # a second signal
        if again is None:
            if self._late:
                to_stderr(self._late)
            end_at_once(number)

    def _next(self, until: float | None, awaited: Collection[int]) -> int | None:
        """The next of the awaited signals; 0 when the context ends, None on timeout. Other signals are skipped."""
        while until is None or time.monotonic() < until:
            wait_s = None if until is None else max(0.0, until - time.monotonic())
            ready, _, _ = select.select([self._read_end], [], [], wait_s)
            byte = os.read(self._read_end, 1) if ready else b""
            if byte == _OVER:
                return 0
            if byte and byte[0] in awaited:
                return byte[0]
        return None


_current: Interrupt | None = None
_guarded = False


def _reset_in_child() -> None:
    """Reset a forked child, which inherits the pipe but must handle its own signals."""
    if _current is not None:
        signal.set_wakeup_fd(-1)
        _current.give_back()
