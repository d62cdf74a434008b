"""The lock on a results directory, which at most one driver holds."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shlex
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import psutil
from filelock import FileLock, Timeout

from orchestrator.store.failpoints import Moment, reached
from orchestrator.store.files import read_regular, write_durably
from orchestrator.store.results_folder import ResultsFolder
from sweeps.axes import is_whole
from sweeps.errors import ConfigError

_GRACE_S = 1.0  # how long a new owner may take between locking the directory and writing its name


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The driver that holds a results directory."""

    host: str
    pid: int
    started: str  # UTC, ISO 8601


class LockedError(ConfigError):
    """Another driver holds the results directory; `owner` is None if it has not written its name."""

    def __init__(self, root: Path, owner: Owner | None) -> None:
        self.owner = owner
        who = f"process {owner.pid} on host {owner.host} since {owner.started}" if owner else "a driver without a name"
        shown = f"mode=watch {shlex.quote(f'results_dir={root}')} shows it"
        super().__init__([f"{root} is in use by {who}; {shown}; wait for it, stop it, or choose another results_dir"])


class DirectoryLock:
    """Context manager that locks a results directory.

    The kernel holds the lock (flock) and releases it if the owner dies; the owner file only names the owner. An open
    journal is locked as well, in case somebody removes the lock file. Raises LockedError at once, without waiting, if
    another driver holds one of the locks.
    """

    def __init__(self, folder: ResultsFolder, *, made: bool = False) -> None:
        """`made`: whether this driver created the directory, and removes it again if it remains unused."""
        self._folder = folder
        self._made = made
        self._lock = FileLock(folder.lock, mode=0o600)

    def __enter__(self) -> DirectoryLock:
        # The lock is a file in the directory.
        self._folder.create()
        try:
            self._lock.acquire(blocking=False)
        except (Timeout, FileNotFoundError):  # or another driver has just removed the unused directory
            raise LockedError(self._folder.root, _owner(self._folder.owner)) from None
        # Somebody who sees a stale-looking lock file deletes it, and the driver holds a file without a name.
        if _is_locked(self._folder.journal):
            self._lock.release()
            raise LockedError(self._folder.root, _owner(self._folder.owner))
        reached(Moment.LOCKED)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        me = Owner(host=platform.node(), pid=os.getpid(), started=now)
        try:
            write_durably(self._folder.owner, json.dumps(asdict(me)).encode())
        except BaseException:
            self._lock.release()
            raise
        reached(Moment.SIGNED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._folder.owner.unlink(missing_ok=True)
            if self._made:
                with suppress(OSError):  # NFS keeps an open lock file under another name, or another driver has started
                    self._folder.remove_if_unused()
        finally:
            self._lock.release()


def driver_of(folder: ResultsFolder) -> str:
    """Return the driver that holds the directory, as text; empty if none does. Changes nothing."""
    if not _is_locked(folder.journal):
        return ""
    owner = _read(folder.owner)
    return f"process {owner.pid} on {owner.host} since {owner.started}" if owner else "a driver without a name"


def _is_locked(journal: Path) -> bool:
    """Return whether a driver has the journal open."""
    try:
        file = os.open(journal, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # reported when it is opened for writing
        return False
    try:
        # Shared, so that two readers do not take each other for a driver.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _owner(path: Path) -> Owner | None:
    """The owner; waits briefly if the file names a dead process."""
    # A new owner locks the directory before it writes its name.
    deadline = time.monotonic() + _GRACE_S
    while True:
        owner = _read(path)
        # Only on its own host is a process known to have ended.
        if owner and (owner.host != platform.node() or psutil.pid_exists(owner.pid)):
            return owner
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def _read(path: Path) -> Owner | None:
    """Return the owner that the file names; None if there is no such file, or it names none."""
    try:
        owner = Owner(**json.loads(read_regular(path)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    # A foreign folder may hold anything, and a process id out of range makes psutil raise.
    is_sound = isinstance(owner.host, str) and isinstance(owner.started, str) and is_whole(owner.pid)
    return owner if is_sound and 0 < owner.pid < 2**31 else None
