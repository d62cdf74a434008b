"""The learning curve of a trial: `metrics.jsonl`, a row an epoch.

Curves are for pictures. Rows are not made durable one by one: what a crash can take are the last rows of a trial that
has no end in the journal. A trial that is interrupted or retried starts again, and so does its curve, from the first
epoch that the new attempt reports: one that continues from a checkpoint keeps what was before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.storage import json_line
from orchestrator.storage.durable import append, write_whole

TORN = "torn"
"""What the word about a last line begins with that has no end: its writer is at it, or was killed."""


def begin(path: Path) -> None:
    """Start the curve of a new attempt: rows of the one before are gone."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, b"")


def extend(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows of JSON values, in order."""
    append(path, b"".join(json_line.encode(row) + b"\n" for row in rows))


def read(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows that are whole, and a line about each that is not; FileNotFoundError without a curve."""
    rows, damages = [], []
    *lines, tail = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            damages.append(f"line {number} is not a row ({len(line)} bytes)")
    if tail:
        damages.append(f"{TORN}: line {len(lines) + 1} has no end ({len(tail)} bytes)")
    return rows, damages


def take_back(path: Path, epoch: Any) -> None:
    """Drop the rows from this epoch on, and damaged ones: an attempt that continues from a checkpoint says them again.

    Rows without a number for an epoch cannot be placed, and go as well.
    """
    rows, _ = read(path)
    kept = [row for row in rows if _is_before(row.get("epoch"), epoch)]
    write_whole(path, b"".join(json_line.encode(row) + b"\n" for row in kept))


def _is_before(epoch: Any, other: Any) -> bool:
    return isinstance(epoch, (int, float)) and isinstance(other, (int, float)) and epoch < other
