"""Standard output and error that outlast their reader: `| head` ends early, and Ctrl-C ends `| tee log` first.

A sweep is not lost, and says nothing of Python's, because nobody listens any more, or cannot read all signs.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO


class _Outlet(io.FileIO):
    """A file descriptor that leads nowhere once its reader has gone."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def outlast_readers() -> None:
    """Put such files in the places of `sys.stdout` and `sys.stderr`, where these are the process's own."""
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)


def _lasting(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # closed (None), or a program's that captures it
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Outlet(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="replace" if stream.errors == "strict" else stream.errors,  # PYTHONIOENCODING=latin-1 has no †
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
