"""The file that a command writes its metrics to."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainables.command.metrics import CommandMetrics
from trainables.command.output_lines import OutputLines


class MetricsFile:
    """JSON lines are read as they come, other files at the end; a command that has none (path None) writes nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if self._path:
            self._path.unlink(missing_ok=True)  # an earlier attempt's
        whole = self._path is not None and self._path.suffix in (".json", ".csv")
        self._lines = OutputLines(self._path) if self._path and not whole else None

    def new(self) -> Iterator[str]:
        """The JSON lines written since the last call."""
        return self._lines.new() if self._lines else iter(())

    def rows(self, metrics: CommandMetrics) -> Iterator[dict[str, Any]]:
        """The rows of a file that is read as a whole. ValueError where it is absent, or is not what its name says."""
        if self._path is None:
            return
        if not self._path.is_file():
            raise ValueError(f"trainable.metrics_file: the command wrote no {self._path}")
        if self._lines is None:
            for row in _table(self._path):
                yield from metrics.row(row)


def _table(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix == ".csv":
            return list(csv.DictReader(file))
        content = json.load(file)
    return [row for row in (content if isinstance(content, list) else [content]) if isinstance(row, dict)]
