"""One driver a results directory."""

from __future__ import annotations

import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import psutil
from filelock import FileLock, Timeout

from orchestrator.storage.crash_point import Moment, reached
from orchestrator.storage.durable import write_durably
from orchestrator.storage.layout import Layout

_GRACE_S = 1.0
"""How long a new owner may take between locking the directory and signing for it."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The driver that holds a results directory."""

    host: str
    pid: int
    started: str
    """UTC, ISO 8601."""

    @staticmethod
    def me() -> Owner:
        """The process that asks."""
        return Owner(host=platform.node(), pid=os.getpid(), started=datetime.now(UTC).isoformat(timespec="seconds"))

    def may_live(self) -> bool:
        """False only if the process is known to be gone, which a host knows of its own processes."""
        return self.host != platform.node() or psutil.pid_exists(self.pid)


class LockedError(RuntimeError):
    """Another driver owns the results directory; `owner` says which, None if it has not signed."""

    def __init__(self, root: Path, owner: Owner | None) -> None:
        self.owner = owner
        who = f"process {owner.pid} on host {owner.host} since {owner.started}" if owner else "a driver without a name"
        super().__init__(f"{root} is in use by {who}; wait for it, stop it, or choose another results_dir")


class DirectoryLock:
    """Owns a results directory for as long as the `with` lasts, or this process lives.

    The lock is the kernel's (flock), so that a dead owner's does not hold; the owner file beside it only says whose
    it is. LockedError at once, without waiting, if another driver has the directory.
    """

    def __init__(self, layout: Layout, *, made: bool = False) -> None:
        """`made`: whether the directory was made for this, and is to go again where nothing comes into it."""
        self._layout = layout
        self._made = made
        self._lock = FileLock(layout.lock, mode=0o600)

    def __enter__(self) -> DirectoryLock:
        self._layout.create()
        try:
            self._lock.acquire(blocking=False)
        except (Timeout, FileNotFoundError):  # or somebody has just removed a directory that came to nothing
            raise LockedError(self._layout.root, _owner(self._layout.owner)) from None
        reached(Moment.LOCKED)
        try:
            write_durably(self._layout.owner, json.dumps(asdict(Owner.me())).encode())
        except BaseException:
            self._lock.release()
            raise
        reached(Moment.SIGNED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._layout.owner.unlink(missing_ok=True)
            if self._made:
                with suppress(OSError):  # NFS keeps a name for the lock while it is open, or another driver begins
                    self._layout.remove_if_unused()
        finally:
            self._lock.release()


def owner_alive(layout: Layout) -> Owner | None:
    """Who has signed for the directory, and may live; a crash leaves the signature of a dead process."""
    owner = _read(layout.owner)
    return owner if owner and owner.may_live() else None


def _owner(path: Path) -> Owner | None:
    """Who signed. A dead process's signature is a former owner's: the new one is about to write its own."""
    deadline = time.monotonic() + _GRACE_S
    while True:
        owner = _read(path)
        if owner and owner.may_live():
            return owner
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def _read(path: Path) -> Owner | None:
    try:
        return Owner(**json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
