"""Ctrl-C and SIGTERM: the first asks for a clean end, the second ends at once."""

from __future__ import annotations

import os
import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)

INTERRUPTED = tuple(128 + number for number in SIGNALS)
"""What a shell expects of a process that ended because of one of them: 130, 143."""


_SAID = b"\ninterrupted: what runs is given up, and the tables follow; once more ends at once\n"


class Interrupt:
    """While the `with` lasts, remembers the first signal that came."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, object] = {}

    @property
    def exit_status(self) -> int:
        """What a shell expects of a process that ended because of the signal: 130 or 143."""
        assert self.signal is not None
        return 128 + self.signal

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._came) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            os._exit(128 + number)  # asked twice: whatever is still running dies with this process
        self.signal = number
        os.write(2, _SAID)
