"""The lines that a process writes to a file, read in bounded amounts while it runs."""

from __future__ import annotations

import codecs
import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

LONGEST = 2**20  # characters after which a line is returned although it has no end yet

SEARCHED = 2**11
"""Characters of a line in which patterns are searched: many patterns take quadratic time on long lines."""

CHUNK = 2**16  # bytes that are read at once
READ_S, READ_LAST_S = 0.2, 2.0  # the longest time for reading lines at each poll, and after the command's end

BACKLOG, BACKLOG_KEPT = 2**23, 2**16
"""If more bytes than BACKLOG are unread after a poll, all but the last BACKLOG_KEPT are skipped."""

LOG_MOST, LOG_KEPT = 2**24, 2**21
"""A log of more bytes than LOG_MOST is cut to its first and last LOG_KEPT bytes."""

_LINE_ENDS = re.compile(r"\r\n|\n|\r")  # progress bars rewrite a line with \r


class FileTail:
    """The lines that a process writes to a file, read without waiting; bytes that are not UTF-8 are replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self.open_line = ""  # what has been read of a line that has no end yet
        self._lines: deque[str] = deque()  # lines that have been read and not returned yet
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_inside_line = False  # whether the beginning of the next line was skipped
        self._skipped = self._removed = 0
        """Bytes that were not read because there were too many, and bytes that were removed from the log."""

    def new(self, *, ended: bool = False) -> Iterator[str]:
        """Yield lines written since the last call, with `ended` also an unfinished one; a long backlog is skipped."""
        # A pipe or a device would make the reader wait.
        if self.path.is_file():
            yield from self._timely(READ_LAST_S if ended else READ_S)
            unread = self.path.stat().st_size - self._offset
            if unread > (BACKLOG_KEPT if ended else BACKLOG):
                self._skip(unread - BACKLOG_KEPT)
            if ended:
                yield from self._timely(READ_LAST_S)
                if self._lines:
                    self._skip(self.path.stat().st_size - self._offset)
        # A program that is killed leaves its last line without an end.
        if ended and self.open_line:
            line, self.open_line = self.open_line, ""
            yield line

    def _timely(self, seconds: float) -> Iterator[str]:
        """Yield lines until none is left, or the time is over."""
        until = time.monotonic() + seconds
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while True:
                while self._lines:
                    if time.monotonic() > until:
                        return
                    yield self._lines.popleft()
                # A line without an end returns nothing until it is LONGEST.
                data = file.read(CHUNK) if time.monotonic() <= until else b""
                if not data:
                    return
                self._offset += len(data)
                *lines, self.open_line = _LINE_ENDS.split(self.open_line + self._decoder.decode(data))
                if self._is_inside_line and lines:
                    # A part of a number would be another number.
                    self._is_inside_line = False
                    del lines[0]
                elif self._is_inside_line:
                    self.open_line = ""
                if len(self.open_line) > LONGEST:
                    lines, self.open_line = [*lines, self.open_line], ""
                self._lines.extend(lines)

    def _skip(self, unread: int) -> None:
        """Skip so many unread bytes, and the lines that wait to be returned."""
        self._skipped += unread + sum(map(len, self._lines)) + len(self.open_line)
        self._offset += unread
        self._lines.clear()
        self.open_line = ""
        self._is_inside_line = True
        self._decoder.reset()

    def shorten(self) -> None:
        """Cut a log of more than LOG_MOST bytes to its head and tail; output that is written meanwhile may be lost."""
        # The command may have removed its log.
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size <= LOG_MOST:
            return
        with self.path.open("r+b") as file:
            file.seek(size - LOG_KEPT)
            tail = file.read(LOG_KEPT)
            file.truncate(LOG_KEPT)
        self._removed += size - 2 * LOG_KEPT
        with self.path.open("ab") as file:
            file.write(f"\n[… {self._removed / 1e6:.0f} MB are removed here …]\n".encode() + tail)
            end = file.tell()
        unread = size - self._offset
        if unread > LOG_KEPT:
            self._skip(unread - LOG_KEPT)
        self._offset = end - min(unread, LOG_KEPT)

    def remarks(self, stream: str) -> Iterator[str]:
        """Yield a line for each loss of output."""
        if self._skipped:
            yield (
                f"{stream} grew faster than it could be read: {self._skipped / 1e6:.1f} MB were skipped, and with them"
                " the metrics that they had"
            )
        if self._removed:
            yield f"{stream}.log was too long: {self._removed / 1e6:.0f} MB were removed from its middle"
