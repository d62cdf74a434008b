"""Ends the process from any thread, without unwinding; the driver's watcher then ends whatever is still running."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NoReturn

_SHOW_CURSOR = b"\x1b[?25h\n"


def to_stderr(message: str) -> None:
    """Write to standard error, if anybody still reads it: Ctrl-C ends a `tee` behind the pipe, too."""
    with suppress(OSError):
        os.write(2, f"\n{message}\n".encode())


def leave(status: int) -> NoReturn:
    """End with this exit status."""
    with suppress(OSError):
        if os.isatty(1):  # a live table has hidden the cursor
            os.write(1, _SHOW_CURSOR)
    os._exit(status)
