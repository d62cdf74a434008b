"""Files that are either the old ones or the new ones, whole, whatever happens in between."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from orchestrator.storage.crash_point import Moment, reached

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_END = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def write_durably(path: Path, data: bytes) -> None:
    """Write aside, fsync, replace, fsync the directory. On OSError the file is as it was before."""
    _replace(path, data, durably=True)
    sync_directory(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """As `write_durably`, but for what can be made again: a power cut may take it, a crash of the process cannot."""
    _replace(path, data, durably=False)


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file that can be made again; OSError, and perhaps a torn end, where it cannot be written."""
    file = os.open(path, _END, 0o600)
    try:
        write_all(file, data)
    finally:
        os.close(file)


def write_all(file: int, data: bytes) -> None:
    """Write every byte. OSError, naming a full disk, where the system takes no more and does not say why."""
    rest = memoryview(data)
    while rest:
        written = os.write(file, rest)
        if written <= 0:
            raise OSError(errno.ENOSPC, f"{len(rest)} of {len(data)} bytes not written: {os.strerror(errno.ENOSPC)}")
        rest = rest[written:]


def _replace(path: Path, data: bytes, *, durably: bool) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    try:
        file = os.open(aside, _NEW, 0o600)
        try:
            write_all(file, data)
            if durably:
                os.fsync(file)
        finally:
            os.close(file)
        reached(Moment.ASIDE_WRITTEN)
        os.replace(aside, path)
    except OSError as error:
        with suppress(OSError):  # what the user has to know is why it could not be written
            aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    reached(Moment.REPLACED)


def make_directory(path: Path) -> None:
    """Make a directory that only its owner may enter, durably; one that exists is left as it is. OSError for a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        refuse_link(path)
        if not path.is_dir():
            raise
    else:
        sync_directory(path.parent)


def refuse_link(path: Path) -> None:
    """OSError if this is a link: what is written below it would be anywhere. Nothing needs to be there."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, and what is written there would be elsewhere", str(path))


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: fsync of a file covers its content, not its name."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
