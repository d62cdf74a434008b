"""Standard output and error that still work after their reader has ended.

`| head` ends early, and Ctrl-C ends `| tee log` before the sweep. A closed pipe or terminal must neither abort a sweep
nor print a Python traceback, and neither must an encoding that lacks a character.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO

_NO_READER = (errno.EPIPE, errno.EIO)
"""Errors of a pipe without a reader and of a closed terminal."""


class _Outlet(io.FileIO):
    """A file descriptor that discards output once its reader has ended."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _NO_READER:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def outlast_readers() -> None:
    """Replace `sys.stdout` and `sys.stderr` by streams that outlast their readers; streams of a program stay."""
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)


def _lasting(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # closed (None), or replaced by a program that captures it
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Outlet(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace" if stream.errors == "strict" else stream.errors,  # PYTHONIOENCODING=latin-1 has no †
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
