"""The files of a trial that never change once it has ended, and their digests.

The learning curve of a trial: `metrics.jsonl`, one row per epoch.

Rows are not made durable one by one: a crash can lose the last rows of a trial that has not ended in the journal. A
trial that is interrupted or retried restarts its curve at the first epoch that the new attempt reports; an attempt that
continues from a checkpoint keeps the rows before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.store import files
from orchestrator.store.files import append, write_whole
from orchestrator.store.layout import CONFIG, METRICS, TELEMETRY, TRACE
from orchestrator.store.secrets import Secrets

HASHED = (CONFIG, METRICS, TRACE, TELEMETRY)
"""Files written before the trial's end is recorded; checkpoints have digests in their names, other files are logs."""


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each of these files that exists, by name."""
    return {name: digest(folder / name) for name in HASHED if (folder / name).exists()}


def digest(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hide_in_logs(folder: Path, secrets: Secrets) -> None:
    """Remove secrets from the logs of ranks and commands, once nothing writes to them any more."""
    for log in sorted(folder.glob("*.log")):
        content = log.read_bytes()
        text = content.decode("utf-8", "surrogateescape")
        clean = secrets.text(text)
        if clean != text:
            write_whole(log, clean.encode("utf-8", "surrogateescape"))


TORN = "torn"
"""Prefix of the message about an incomplete last line, whose writer is still writing or was killed."""


def begin(path: Path) -> None:
    """Start the curve of a new attempt, discarding earlier rows."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, b"")


def extend(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows of JSON values, in order."""
    append(path, b"".join(files.encode(row) + b"\n" for row in rows))


def read(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The intact rows, and a message about each damaged one. Raises FileNotFoundError if there is no curve."""
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
    """Drop rows from this epoch on, which an attempt that continues from a checkpoint reports again.

    Damaged rows and rows without a numeric epoch are dropped as well.
    """
    rows, _ = read(path)
    kept = [row for row in rows if _is_before(row.get("epoch"), epoch)]
    write_whole(path, b"".join(files.encode(row) + b"\n" for row in kept))


def _is_before(epoch: Any, other: Any) -> bool:
    return isinstance(epoch, (int, float)) and isinstance(other, (int, float)) and epoch < other
