"""The files of a trial that never change once it has ended, and what they hashed to then."""

from __future__ import annotations

import hashlib
from pathlib import Path

HASHED = ("config.yaml", "metrics.jsonl", "trace.txt")
"""Written by the driver before the trial's end is recorded; what ranks write has checksums of its own, or is a log."""


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each of these files that is there, by name."""
    return {name: digest(folder / name) for name in HASHED if (folder / name).exists()}


def digest(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
