"""Atomic and durable writes: a file has either its old or its new contents, whatever happens in between."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from orchestrator.storage.crash_point import Moment, reached

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_END = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def write_durably(path: Path, data: bytes) -> None:
    """Write to a temporary file, fsync, replace, fsync the directory. On OSError the file is unchanged."""
    _replace(path, data, durably=True)
    sync_directory(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Write atomically without fsync, for what can be rebuilt: it survives a crash of the process, not a power cut."""
    _replace(path, data, durably=False)


def append(path: Path, data: bytes) -> None:
    """Append to a file that can be rebuilt. An OSError may leave a partial last line."""
    file = os.open(path, _END, 0o600)
    try:
        write_all(file, data)
    finally:
        os.close(file)


def write_all(file: int, data: bytes) -> None:
    """Write every byte. Raises OSError for a full disk if the system writes nothing without saying why."""
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
        with suppress(OSError):  # the error to report is the one of the write
            aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    reached(Moment.REPLACED)


def make_directory(path: Path) -> None:
    """Create a private directory durably, unless it exists. Raises OSError if it is a link."""
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
    """Raise OSError if the path is a link, which would lead writes elsewhere. The path need not exist."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, and what is written there would be elsewhere", str(path))


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: fsync of a file covers its content, not its name."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
