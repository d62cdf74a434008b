"""Files with metrics that a command writes: lines of JSON, CSV, and whole JSON files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainables.command.metrics import CommandMetrics
from trainables.command.process import OutputLines


class MetricsFile:
    """The command's metrics file: lines of JSON and CSV are read as they are written, .json at the end; None: no file.

    A CSV file may be written anew, as Lightning does: then only further lines count.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if self._path:
            self._path.unlink(missing_ok=True)  # of an earlier attempt
        self._is_table = path is not None and path.suffix == ".csv"
        is_whole = path is not None and path.suffix == ".json"
        self._lines = OutputLines(path) if path and not is_whole and not self._is_table else None
        self._rows_read = 0
        self._read: tuple[int, int] | None = None
        """The size and modification time of the table when it was last read."""

    def new(self, *, ended: bool = False) -> Iterator[str]:
        """Return the lines written since the last call, as lines of JSON; with `ended`, also an unfinished last one."""
        if self._lines is not None:
            yield from self._lines.new(ended=ended)
        elif self._is_table and self._path is not None and self._path.is_file():
            state = self._path.stat()
            before, self._read = self._read, (state.st_size, state.st_mtime_ns)
            if self._read == before and not ended:
                return
            text = self._path.read_text(encoding="utf-8", errors="replace")
            whole = text if ended else text[: text.rfind("\n") + 1]
            rows = list(csv.DictReader(io.StringIO(whole)))
            for row in rows[self._rows_read :]:
                cells = {str(key).strip(): cell.strip() for key, cell in row.items() if isinstance(cell, str)}
                yield json.dumps({key: cell for key, cell in cells.items() if cell})
            self._rows_read = max(self._rows_read, len(rows))

    def rows(self, metrics: CommandMetrics) -> Iterator[dict[str, Any]]:
        """Yield the rows of a file that is read as a whole. Raises ValueError if it is missing or malformed."""
        if self._path is None:
            return
        if not self._path.is_file():
            raise ValueError(f"trainable.metrics_file: the command wrote no {self._path}")
        if self._path.suffix != ".json":
            return
        content = json.loads(self._path.read_text(encoding="utf-8"))
        for row in content if isinstance(content, list) else [content]:
            if isinstance(row, dict):
                yield from metrics.row(row)
