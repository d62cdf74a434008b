"""Files that are either the old ones or the new ones, whole, whatever happens in between."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Write aside, fsync, replace, fsync the directory. On OSError the file is as it was before."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(aside, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync_directory(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """As `write_durably`, but for what can be made again: a power cut may take it, a crash of the process cannot."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    try:
        aside.write_bytes(data)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Make a directory that only its owner may enter, durably; one that exists is left as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: fsync of a file covers its content, not its name."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
