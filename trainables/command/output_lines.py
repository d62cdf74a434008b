"""The lines that a process writes into a file, as they come."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

LONGEST = 2**20
"""Characters after which a line is given out although it has not ended."""

_ENDS = re.compile(r"\r\n|\n|\r")  # progress bars write lines over and over, with \r between them


class OutputLines:
    """A reader that never waits; bytes that are no UTF-8 are replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._partial = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def new(self, *, ended: bool = False) -> Iterator[str]:
        """The lines written since the last call; with `ended` the last one needs no line end."""
        while text := self._read():
            *lines, self._partial = _ENDS.split(self._partial + text)
            if len(self._partial) > LONGEST:
                lines, self._partial = [*lines, self._partial], ""
            yield from lines
        if ended and self._partial:
            line, self._partial = self._partial, ""
            yield line

    def _read(self) -> str:
        if not self.path.exists():
            return ""
        text, data = "", b"-"
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while data and not text:  # a part of a character is no text yet
                data = file.read(LONGEST)
                self._offset += len(data)
                text = self._decoder.decode(data)
        return text
