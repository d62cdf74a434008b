"""The files of a trial that never change once it has ended, and their digests."""

from __future__ import annotations

import hashlib
from pathlib import Path

from orchestrator.storage.durable import write_whole
from orchestrator.storage.layout import CONFIG, METRICS, TELEMETRY, TRACE
from orchestrator.storage.secrets import Secrets

HASHED = (CONFIG, METRICS, TRACE, TELEMETRY)
"""Files written before the trial's end is recorded; checkpoints have digests of their own, other files are logs."""


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each of these files that exists, by name."""
    return {name: digest(folder / name) for name in HASHED if (folder / name).exists()}


def digest(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hide_in_logs(folder: Path, secrets: Secrets) -> None:
    """Remove secrets from the ranks' logs, once no rank writes to them any more."""
    for log in sorted(folder.glob("rank*.log")):
        content = log.read_bytes()
        text = content.decode("utf-8", "surrogateescape")
        clean = secrets.text(text)
        if clean != text:
            write_whole(log, clean.encode("utf-8", "surrogateescape"))
