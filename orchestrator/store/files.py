"""Atomic and durable writes: a file has either its old or its new contents, whatever happens in between.

Values as one line of strict JSON.

YAML of plain values, with libyaml if PyYAML was built with it, which is ten times as fast.

Messages for users whose disk fails or is full: which file, why, and what to do.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import yaml
from rich.filesize import decimal

from orchestrator.store.failpoints import Moment, reached

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_END = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def read_regular(path: Path, last: int | None = None) -> bytes:
    """Return the contents of a regular file, or at most so many bytes at its end.

    Raises OSError for a pipe or a device, which a foreign folder may have in its place: reading it might never end.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        refuse_irregular(path, file)
        with os.fdopen(file, "rb", closefd=False) as stream:
            if last is not None:
                stream.seek(max(0, os.fstat(file).st_size - last))
            return stream.read(last)
    finally:
        os.close(file)


def refuse_irregular(path: Path, file: int) -> None:
    """Raise OSError if an open file is a folder, a pipe or a device."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


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
    # In the same folder, since a rename is atomic only within a file system.
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
    """Create a private directory durably, unless it exists. Raises OSError if it is a link, or without its parent."""
    try:
        # Without its parents: a results directory that disappears during a sweep must not be made again, because its
        # journal would be missing.
        path.mkdir(mode=0o700)
    except FileExistsError:
        refuse_link(path)
        if not path.is_dir():
            raise
    else:
        sync_directory(path.parent)


def remove_folder(path: Path) -> None:
    """Delete a folder as far as possible. Anything else at this path stays: opening a pipe would wait for a writer."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)


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


_PLAIN = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
"""Refuse values that are not JSON instead of converting them."""


def encode(value: Any) -> bytes:
    """JSON values as ASCII without a line end, keys in their order; NaN and infinities become null.

    Raises TypeError for other values. A finished trial's record takes 2 µs; `json` takes 43, half a write and fsync.
    """
    try:
        line = orjson.dumps(value, option=_PLAIN)
    except TypeError:  # numbers of more than 64 bits, keys that are numbers, half a surrogate pair
        return _encode(value)
    # Some readers treat other characters than \n as line ends, as str.splitlines does.
    return line if line.isascii() else _encode(value)


def _encode(value: Any) -> bytes:
    return json.dumps(finite(value), separators=(",", ":"), allow_nan=False).encode()


def finite(value: Any) -> Any:
    """The value with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load(text: str | bytes) -> Any:
    """Parse the text. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe one


def dump(value: Any) -> str:
    """The value as text, keys in their order."""
    return str(yaml.dump(value, Dumper=_DUMPER, sort_keys=False))


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)

_FULL = (errno.ENOSPC, errno.EDQUOT)

_TO_DO = {
    errno.ENOSPC: "free some space there, or move the results to a larger disk",
    errno.EDQUOT: "free some of your quota there, or move the results to another disk",
    errno.EROFS: "the file system is read-only: remount it for writing, or move the results elsewhere",
    errno.EIO: "the disk reports errors: look at the system's log, and move the results to another disk",
    errno.EMFILE: "this process has too many files open: raise the limit (ulimit -n)",
    errno.ENFILE: "the machine has too many files open",
    errno.EFBIG: "a file may not become that large: raise the limit (ulimit -f)",
    errno.ENOENT: "a folder of the results was deleted: the same command makes it again",
    errno.EACCES: "look at the permissions of the results directory",
    errno.EPERM: "look at the permissions of the results directory",
}


def is_at_fault(error: OSError, results_dir: Path) -> bool:
    """Return whether the error is due to the disk or a file of the results, not to a network or the user's code."""
    inside = error.filename is not None and Path(str(error.filename)).absolute().is_relative_to(results_dir.absolute())
    return inside or fails(error)


def fails(error: OSError) -> bool:
    """Return whether the disk itself failed, whatever the file."""
    return error.errno in _DISK


def advice(error: OSError, results_dir: Path) -> str:
    """A message for a file system error: the path, the free space, and what to do."""
    place = Path(str(error.filename)) if error.filename else results_dir
    stopped = f"stopped: {place} cannot be written ({error.strerror or error})."
    if not results_dir.is_dir() or error.errno == errno.ESTALE:
        state = "or its journal was moved, deleted or replaced, or its disk is no longer there"
        return f"{stopped} {results_dir} {state}: bring it back, and the same command continues."
    to_do = _TO_DO.get(error.errno or 0, "look at the system's log")
    room = f"{_free(results_dir)}: " if error.errno in _FULL else ""
    return f"{stopped} {room}{to_do}. What is in the journal is safe, and the same command continues."


_FEW_INODES = 20


def _free(folder: Path) -> str:
    try:
        space, inodes = shutil.disk_usage(folder), os.statvfs(folder)
    except OSError:
        return str(folder)
    # Many small files use up the inodes long before the space. Some file systems have no limit, and give 0 files.
    # The file that could not be written is removed before, which frees some.
    if inodes.f_files and inodes.f_favail < _FEW_INODES:
        return f"{folder} has {inodes.f_favail} inodes free for further files, of {inodes.f_files:,}"
    return f"{folder} has {decimal(space.free)} of {decimal(space.total)} free"
