"""Messages for users whose disk fails or is full: which file, why, and what to do."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from rich.filesize import decimal

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)

_FULL = (errno.ENOSPC, errno.EDQUOT)

_TO_DO = {
    errno.ENOSPC: "free some space there, or move the results to a larger disk",
    errno.EDQUOT: "free some of your quota there, or move the results to another disk",
    errno.EROFS: "the file system is read-only: remount it for writing, or move the results elsewhere",
    errno.EIO: "the disk reports errors: look at the system's log, and move the results to another disk",
    errno.EMFILE: "this process has too many files open: raise the limit (ulimit -n)",
    errno.ENFILE: "the machine has too many files open",
}


def is_at_fault(error: OSError, results_dir: Path) -> bool:
    """Whether the error is due to the disk or a file of the results, rather than a network or the user's code."""
    inside = error.filename is not None and Path(str(error.filename)).absolute().is_relative_to(results_dir.absolute())
    return inside or fails(error)


def fails(error: OSError) -> bool:
    """Whether the disk itself failed, whatever the file."""
    return error.errno in _DISK


def advice(error: OSError, results_dir: Path) -> str:
    """A message for a file system error: the path, the free space, and what to do."""
    place = Path(str(error.filename)) if error.filename else results_dir
    if not results_dir.is_dir():
        state = "was moved or deleted, or its disk is no longer there: bring it back, and the same command continues"
        return f"stopped: {place} cannot be written ({error.strerror or error}). {results_dir} {state}."
    to_do = _TO_DO.get(error.errno or 0, "look at the permissions of the results directory")
    room = f"{_free(results_dir)}: " if error.errno in _FULL else ""
    return (
        f"stopped: {place} cannot be written ({error.strerror or error}). {room}{to_do}. "
        "What is in the journal is safe, and the same command continues."
    )


def _free(folder: Path) -> str:
    try:
        space = shutil.disk_usage(folder)
    except OSError:
        return str(folder)
    return f"{folder} has {decimal(space.free)} of {decimal(space.total)} free"
