"""Ctrl-C and SIGTERM: the first asks for a clean end and gives it some seconds, the second ends at once."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)

INTERRUPTED = tuple(128 + number for number in SIGNALS)
"""What a shell expects of a process that ended because of one of them: 130, 143."""

GRACE_S = 8.5
"""How long a clean end may take: whoever sent the signal sends SIGKILL after ten seconds, and the journal is safe."""


_SAID = "interrupted: what runs is given up, and the tables follow; once more ends at once"
_NOTHING_RUNS = "interrupted: nothing runs any more, the tables are being made; once more ends at once"
_NOTHING_RAN = "interrupted while starting: no trial ran, and the same command continues"
_OVER = b"\0"
_TOO_SLOW = "this does not end in time, and is killed: the same command continues, mode=report makes the tables"
_SHOW_CURSOR = b"\x1b[?25h\n"


def _say(message: str) -> None:
    """On standard error, if anybody reads it: Ctrl-C ends a `tee` behind the pipe, too."""
    with suppress(OSError):
        os.write(2, f"\n{message}\n".encode())


def end_at_once(number: int, frame: FrameType | None = None) -> None:
    """End the process, also as a signal's handler; the driver's watcher ends what is still running."""
    with suppress(OSError):
        if os.isatty(1):  # which a live table has hidden the cursor of
            os.write(1, _SHOW_CURSOR)
    os._exit(128 + number)


class Interrupt:
    """While the `with` lasts, remembers the first signal that came.

    Python's own handlers wait for the main thread, which may be in Ray's code for seconds. So a thread is told by the
    system itself, through a pipe: it counts the seconds from the signal on, and hears the second one at once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._say: Callable[[str], None] = _say
        self._before: dict[int, object] = {}
        self._at_once = False
        self._said = _SAID

    @property
    def exit_status(self) -> int:
        """What a shell expects of a process that ended because of the signal: 130 or 143."""
        assert self.signal is not None
        return 128 + self.signal

    def __enter__(self) -> Interrupt:
        global _current
        _guard_forks()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._came) for number in SIGNALS}
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
        self._thread.join()
        os.close(self._write_end)
        os.close(self._read_end)

    @contextmanager
    def said_by(self, say: Callable[[str], None] | None) -> Iterator[None]:
        """Meanwhile this says what there is to say, from a thread: a live table would be drawn over anything else."""
        self._say = say or _say
        try:
            yield
        finally:
            self._say = _say

    @contextmanager
    def ends_at_once(self) -> Iterator[None]:
        """Meanwhile the first signal ends the command: nothing runs yet that could end cleanly.

        A program or notebook that only sweeps, too, is not ended for that: there another handler was in place before.
        """
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def nothing_runs(self) -> None:
        """From here on there are only tables to make, and this is what is said."""
        self._said = _NOTHING_RUNS

    def give_back(self) -> None:
        """The signals have their handlers of before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _came(self, number: int, frame: FrameType | None) -> None:
        """The thread may not have had its turn yet."""
        self.signal = self.signal or number

    def _listen(self) -> None:
        """The thread's: the first signal, and then the second one or the end of the time."""
        number = self._next(None)
        if not number:
            return
        self.signal = self.signal or number
        if self._at_once and self._before[number] is end_at_once:
            _say(_NOTHING_RAN)
            end_at_once(number)
        self._tell(self._said)
        again = self._next(time.monotonic() + GRACE_S)
        if again:
            end_at_once(again)  # asked twice
        if again is None:
            _say(_TOO_SLOW)
            end_at_once(number)

    def _tell(self, message: str) -> None:
        """Somebody else's way to say something may take its time: the seconds are counted all the same."""
        threading.Thread(target=self._say, args=(message,), daemon=True).start()

    def _next(self, until: float | None) -> int | None:
        """The next of the signals; 0 when it is over, None when it is too late. Other handlers' signals pass by."""
        while until is None or time.monotonic() < until:
            wait_s = None if until is None else max(0.0, until - time.monotonic())
            ready, _, _ = select.select([self._read_end], [], [], wait_s)
            byte = os.read(self._read_end, 1) if ready else b""
            if byte == _OVER:
                return 0
            if byte and byte[0] in SIGNALS:
                return byte[0]
        return None


_current: Interrupt | None = None
_guarded = False


def _guard_forks() -> None:
    global _guarded
    if not _guarded:
        os.register_at_fork(after_in_child=_in_child)
        _guarded = True


def _in_child() -> None:
    """A process that is forked has the pipe, too: its signals are its own affair."""
    if _current is not None:
        signal.set_wakeup_fd(-1)
        _current.give_back()
