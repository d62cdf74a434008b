"""Ends the process from any thread, without unwinding. The driver's watcher then ends the processes that still run."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NoReturn

_SHOW_CURSOR = b"\x1b[?25h\n"


def to_stderr(message: str) -> None:
    """Write to standard error; ignore a closed pipe, because Ctrl-C also ends a `tee` that reads it."""
    with suppress(OSError):
        os.write(2, f"\n{message}\n".encode())


def leave(status: int) -> NoReturn:
    """End the process with this exit status."""
    with suppress(OSError):
        if os.isatty(1):  # a live table has hidden the cursor
            os.write(1, _SHOW_CURSOR)
    os._exit(status)
