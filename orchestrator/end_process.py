"""How long the parts of a shutdown may take, and the end of the process from any thread, without unwinding.

The driver's watcher then ends the processes that still run.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NoReturn

# An interrupted sweep goes through these one after the other.
RANKS_STOP_S = 2.0  # until ranks have stopped; then they are killed
GANGS_END_S = RANKS_STOP_S + 1.5  # until gangs have ended with the experiment: their supervisors stop the ranks
RAY_SHUTDOWN_S = 3.0  # until `ray.shutdown` returns, which it never does if a raylet is stopped
KILLED_S = 1.0  # until killed processes are gone, and then until Ray notices; one may hang in the kernel
GRACE_S = GANGS_END_S + RAY_SHUTDOWN_S + 2 * KILLED_S
"""Time limit for all of it, below the ten seconds after which most senders of a signal send SIGKILL.

The tables are written within it, too. If all parts take their longest, they are left out; the journal is safe.
"""

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
