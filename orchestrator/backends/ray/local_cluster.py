"""Ray on this machine alone: a private folder, addresses of the loopback only, and an end with a time limit.

`PrivateFolder` has Ray's files while it runs. `LocalCluster` starts Ray and ends it. `leave_ray` disconnects from any
cluster.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from rich.filesize import decimal

from orchestrator.backends.backend import NotStartedError
from orchestrator.backends.ray import private
from orchestrator.backends.ray.rank import LOOPBACK
from orchestrator.backends.ray.token import keep_token_private, token_file
from orchestrator.config.content_hashes import is_installed
from orchestrator.end_process import KILLED_S, RAY_SHUTDOWN_S

CODE = Path(__file__).parents[3]  # the folder that contains the four packages

LEAST_FREE = 10_000_000
"""Bytes that the folder for temporary files must have free, for the logs and sockets of Ray's processes."""
PREFIX = "orchestrator-ray-"
LONGEST_SOCKET = 103  # bytes of the longest path of a Unix socket, on the system with the lowest limit


class PrivateFolder:
    """A folder that only this user can open, for the logs and sockets of one Ray.

    It is locked while its driver lives, so that the next driver recognises and removes folders of killed ones.
    """

    def __init__(self) -> None:
        """Create it. Raises OSError if no folder for temporary files is suitable."""
        parent = _place()
        remove_stale(parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))  # 0700
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():  # else another driver took it for a stale one before it was locked
                return
            os.close(self._lock)

    @property
    def for_ray(self) -> Path:
        """The folder to give to Ray, which lets all users write into its folder."""
        return self.path / "ray"

    def remove(self) -> None:
        """Remove it. What a process that is just ending still writes is left to the next driver."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_stale(parent: Path) -> None:
    """Remove this user's folders in `parent` whose drivers were killed."""
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, another user's, or removed meanwhile
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _place() -> Path:
    """Return the first writable folder for temporary files with a path short enough for sockets, and enough room."""
    places = [
        Path(place).absolute() for place in (os.environ.get("RAY_TMPDIR"), tempfile.gettempdir(), "/tmp") if place
    ]
    reasons = []
    for place in dict.fromkeys(places):
        socket = place / f"{PREFIX}12345678" / "ray" / private.SESSION / "sockets" / "plasma_store"
        if not os.access(place, os.W_OK | os.X_OK):
            reasons.append(f"{place} cannot be written to")
        elif len(os.fsencode(socket)) > LONGEST_SOCKET:
            reasons.append(f"the path of {place} is too long for sockets")
        # Ray's processes would die for want of a log or a socket, and would seem to be killed from outside.
        elif (free := shutil.disk_usage(place).free) < LEAST_FREE:
            reasons.append(f"{place} has {decimal(free)} free of at least {decimal(LEAST_FREE)}")
        else:
            return place
    raise OSError(f"no folder for Ray's temporary files: {', '.join(reasons)}: RAY_TMPDIR can name one")


_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray would run trials at a lower priority than other processes
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the future default; without it there is a warning in every log
}
STARTS = 2  # how many attempts to start Ray, each of which may exceed Ray's own limit of half a minute
_TOO_LATE = "timed out during startup"


class LocalCluster:
    """Ray on this machine, from its start to `close`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Start Ray with these options of `ray.init`. Raises NotStartedError if that fails."""
        keep_token_private(token_file())
        self._before = set(psutil.Process().children())
        try:
            self._folder = PrivateFolder()
            self.context = self._started(options)
        except Exception as error:  # Ray has no narrower class for a node that takes too long
            message = f"Ray could not be started here: {' '.join(str(error).split())}"
            raise NotStartedError(f"{message} (if the machine is busy, try again later)") from error
        self._processes = set(psutil.Process().children()) - self._before

    def close(self) -> None:
        """End all of Ray's processes, and remove its files."""
        leave_ray(self._processes)
        self._folder.remove()

    def _started(self, options: Mapping[str, Any]) -> Any:
        for attempt in range(1, STARTS + 1):
            try:
                with (
                    environment(_ENVIRONMENT),
                    private.of_one_machine(log_monitor=bool(options.get("log_to_driver"))),
                ):
                    return ray.init(
                        address="local",
                        job_config=private.job_importing_from([*_own_folders(), str(CODE)]),
                        dashboard_host=LOOPBACK,
                        _node_ip_address=LOOPBACK,
                        _temp_dir=str(self._folder.for_ray),
                        **options,
                    )
            except BaseException as error:
                leave_ray(set(psutil.Process().children()) - self._before)
                if attempt == STARTS or _TOO_LATE not in str(error):
                    self._folder.remove()
                    raise
        return None


def leave_ray(started: Iterable[psutil.Process]) -> None:
    """Disconnect from Ray, and end these processes with all their descendants, whatever they do."""
    ours: list[psutil.Process] = []
    for process in started:
        with suppress(psutil.NoSuchProcess):
            ours += [process, *process.children(recursive=True)]
    shutdown = threading.Thread(target=ray.shutdown, daemon=True, name="ray shutdown")
    shutdown.start()
    shutdown.join(RAY_SHUTDOWN_S)
    for process in ours:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(ours, timeout=KILLED_S)
    shutdown.join(KILLED_S)  # it returns once the raylet is dead


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _own_folders() -> list[str]:
    """Return the folders from which the driver imports code that is not installed, such as the folder of a script.

    In reverse order, because workers insert one after the other at the front of their path.
    """
    pythons_own = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    return [
        path
        for path in reversed(sys.path)
        if path and os.path.isdir(path) and not is_installed(Path(path))
        if not any(Path(path).is_relative_to(folder) for folder in pythons_own)
    ]
