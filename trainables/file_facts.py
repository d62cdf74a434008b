"""Facts about large files that take long to compute: their hash, their largest token.

They are kept in the user's cache folder, by path, size and time of change, so that a second command does not read a
corpus or weights again. A file that changes without a change of both is not noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

LARGE = 64 * 2**20  # facts about smaller files, in bytes, are computed every time

Fact = TypeVar("Fact", str, int)


def kept(path: Path, what: str, compute: Callable[[Path], Fact]) -> Fact:
    """Return the fact `what` about a file, computed unless it is known. Raises what `compute` raises."""
    status = path.stat()
    if status.st_size < LARGE:
        return compute(path)
    key = json.dumps([str(path.resolve()), status.st_size, status.st_mtime_ns, what])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sweep-orchestrator"
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, KeyError):  # not known, or cut off by a full disk
        known: Fact = json.loads(file.read_text())[key]
        return known
    fact = compute(path)
    with suppress(OSError):  # without a place to keep it, the fact is computed again the next time
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = file.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({key: fact}))
        os.replace(aside, file)
    return fact


def sha256(path: Path) -> str:
    """Return the hash of a file's content."""

    def compute(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return kept(path, "sha256", compute)
