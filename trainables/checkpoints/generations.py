"""Files that follow one another, one a rank and generation, of which the last two are kept; each is whole or not there.

A file's name holds its generation, its rank and a digest of its content, so that whatever damages it shows.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KEPT = 2
"""Of a rank's files: the newest, and the one before in case that is damaged."""

_NAME = re.compile(r"(\d{8})-rank(\d+)-([0-9a-f]{16})\.pt")


@dataclass(frozen=True, kw_only=True)
class Generations:
    """One rank's view of the folder in which all ranks of a trial write, which they share."""

    folder: Path
    rank: int
    world_size: int

    def write(self, number: int, content: bytes | memoryview) -> None:
        """Make this the rank's file of a generation, durably; of its others only the one before stays. Raises OSError.

        Whatever happens meanwhile, the generation before is there.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / f"{number:08d}-rank{self.rank}-{_digest(content)}.pt"
        aside = path.with_suffix(".aside")
        try:
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        self._sync()
        for other, found in self._files():
            if other != path and not number - KEPT < found < number:
                other.unlink(missing_ok=True)

    def newest(self) -> tuple[int, dict[int, bytes]] | None:
        """The last generation of which every rank's file is there and undamaged, with contents by rank; None: nothing.

        All ranks find the same one, as long as none of them writes.
        """
        paths: dict[int, dict[int, Path]] = {}
        for path, number, rank in self._every():
            paths.setdefault(number, {})[rank] = path
        for number in sorted(paths, reverse=True):
            contents = {rank: content for rank, path in paths[number].items() if (content := _undamaged(path))}
            if set(range(self.world_size)) <= set(contents):
                return number, contents
        return None

    def damaged(self) -> list[str]:
        """Names of files whose content is not what was written."""
        return sorted(path.name for path, _, _ in self._every() if _undamaged(path) is None)

    def _files(self) -> Iterator[tuple[Path, int]]:
        return ((path, number) for path, number, rank in self._every() if rank == self.rank)

    def _every(self) -> Iterator[tuple[Path, int, int]]:
        for path in sorted(self.folder.glob("*.pt")):
            if named := _NAME.fullmatch(path.name):
                yield path, int(named[1]), int(named[2])

    def _sync(self) -> None:
        directory = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)  # fsync of a file covers its content, not its name
        finally:
            os.close(directory)


def _undamaged(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if path.name.endswith(f"-{_digest(content)}.pt") else None


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
