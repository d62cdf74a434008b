"""Ctrl-C and SIGTERM: the first asks for a clean end and gives it some seconds, the second ends at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)

INTERRUPTED = tuple(128 + number for number in SIGNALS)
"""What a shell expects of a process that ended because of one of them: 130, 143."""

GRACE_S = 8.5
"""How long a clean end may take: whoever sent the signal sends SIGKILL after ten seconds, and the journal is safe."""


_SAID = b"\ninterrupted: what runs is given up, and the tables follow; once more ends at once\n"
_TOO_SLOW = b"what runs does not end in time: it is killed, and mode=report makes the tables\n"


def end_at_once(number: int, frame: FrameType | None = None) -> None:
    """End the process as a signal's handler; the driver's watcher ends what is still running."""
    os._exit(128 + number)


class Interrupt:
    """While the `with` lasts, remembers the first signal that came."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, object] = {}
        self._timer: threading.Timer | None = None

    @property
    def exit_status(self) -> int:
        """What a shell expects of a process that ended because of the signal: 130 or 143."""
        assert self.signal is not None
        return 128 + self.signal

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._came) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            end_at_once(number)  # asked twice
        self.signal = number
        os.write(2, _SAID)
        self._timer = threading.Timer(GRACE_S, self._out_of_time)
        self._timer.daemon = True
        self._timer.start()

    def _out_of_time(self) -> None:
        os.write(2, _TOO_SLOW)
        os._exit(self.exit_status)
