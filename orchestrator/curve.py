"""The learning curve of a trial: `metrics.jsonl`, a row an epoch.

Curves are for pictures; a trial that is interrupted starts again and so does its curve. Rows are therefore not made
durable one by one: what a crash can take are the last rows of a trial that has no end in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator import json_line
from orchestrator.durable import write_whole


def begin(path: Path) -> None:
    """Start the curve of a new attempt: rows of the one before are gone."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, b"")


def extend(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows of JSON values, in order."""
    with path.open("ab") as file:
        file.write(b"".join(json_line.encode(row) + b"\n" for row in rows))
