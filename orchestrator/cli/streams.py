"""Standard output and error whose failures end nothing.

`| head` ends early, Ctrl-C ends `| tee log` before the sweep, and a file may be on a full disk. None of that may abort
a sweep or print a Python traceback, and neither may an encoding that lacks a character.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO

from orchestrator.end_process import to_stderr

_NO_READER = (errno.EPIPE, errno.EIO)  # errors of a pipe without a reader and of a closed terminal


class _Outlet(io.FileIO):
    """A file descriptor that discards what it cannot write."""

    lost = False
    """Whether output was discarded that somebody may miss, as on a full disk."""

    def write(self, data: Any, /) -> int:
        try:
            while (written := super().write(data)) is None:  # full, and another program made it non-blocking
                select.select([], [self], [])
            return written
        except OSError as error:
            if error.errno in _NO_READER:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fileno())
                os.close(nowhere)
            elif not self.lost:
                self.lost = True
                to_stderr(f"standard output cannot be written and is lost: {error.strerror}")
            return len(data)


def outlast_readers() -> None:
    """Replace `sys.stdout` and `sys.stderr` by streams that outlast their readers; streams of a program stay."""
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)


@contextmanager
def lasting_stdout() -> Iterator[None]:
    """Context in which `sys.stdout` outlasts its reader, for a program that runs a sweep."""
    with redirect_stdout(_lasting(sys.stdout)):
        try:
            yield
        finally:
            has_lost_output()


def has_lost_output() -> bool:
    """Write what is buffered; return whether anything printed so far was lost, other than for want of a reader."""
    outlet = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(outlet, _Outlet):  # closed from the start, or a program's
        return False
    sys.stdout.flush()
    return outlet.lost


def _lasting(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper) or stream not in (sys.__stdout__, sys.__stderr__):
        return stream  # closed (None), or replaced by a program that captures it
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Outlet(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace" if stream.errors == "strict" else stream.errors,  # PYTHONIOENCODING=latin-1 has no †
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
