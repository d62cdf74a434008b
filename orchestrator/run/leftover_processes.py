"""Ensures that no process outlives its driver: a small watcher process waits for the driver's end and cleans up.

Ray ends the ranks of a killed driver within three seconds, but its agents stay for a minute or for good. With
PR_SET_PDEATHSIG a rank would end at once and leave the processes behind that it has started. So the watcher looks at
the driver's descendants every few seconds, and processes also carry a mark in their initial environment. Programs that
write their title over their environment, such as Ray's agents, lose the mark, but not their parents. Linux only
(/proc, pidfd); elsewhere nothing is watched. This file is also the watcher's program: it imports only psutil.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "ORCHESTRATOR_DRIVER"  # environment variable with the driver of a process: `<pid>.<start>:<results directory>`

LOOK_EVERY_S = 5.0
YOUNG_S, LOOK_AT_YOUNG_S = 60.0, 0.5
"""Seconds after a driver's start within which most of its processes appear. Once the raylet has died with the driver,
Ray's agents can be recognised only by a watcher that has seen them below it.
"""
IGNORED_S = 10.0
"""How long a driver may outlive a signal: by itself it ends earlier, unless C code keeps Python's interpreter."""
CLEAN_UP_S = 8.0
"""Seconds for which leftovers are killed repeatedly: processes that are just ending may still start new ones."""


def marked(mark: str) -> set[psutil.Process]:
    """Return the processes whose mark ends with this text."""
    # The environment of another user's process cannot be read, and then counts as unmarked.
    environments = ((process, process.info["environ"] or {}) for process in psutil.process_iter(["environ"]))
    return {process for process, environment in environments if environment.get(MARK, "").endswith(mark)}


def left_over(root: Path) -> list[int]:
    """Return the ids of processes whose drivers, on this results directory, are dead."""
    processes = marked(f":{root.absolute()}")
    return sorted(process.pid for process in processes if _driver(process.info["environ"][MARK]) is None)


def with_descendants(roots: Iterable[psutil.Process]) -> set[psutil.Process]:
    """Return the given processes and all their descendants that are alive."""
    children, alive = defaultdict(list), set()
    for process in psutil.process_iter(["ppid", "status"]):
        # A zombie has ended: it cannot be killed, and waits only for its parent.
        if process.info["status"] != psutil.STATUS_ZOMBIE:
            children[process.info["ppid"]].append(process)
            alive.add(process)
    family = new = alive & set(roots)
    while new := {child for process in new for child in children[process.pid]} - family:
        family = family | new
    return family


def _start(pid: int) -> str:
    """Return the start of a process in clock ticks since boot; psutil's changes if somebody sets the clock."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _driver(mark: str) -> psutil.Process | None:
    """Return the driver that a mark names; None if it is dead."""
    pid, _, start = mark.partition(":")[0].partition(".")
    with suppress(OSError, psutil.NoSuchProcess):
        # The start as well as the number: the kernel gives the number of an ended process to another one.
        driver = psutil.Process(int(pid))
        return driver if _start(driver.pid) == start and driver.status() != psutil.STATUS_ZOMBIE else None
    return None


class Watcher:
    """Context manager: if this process dies, everything that it has started in the meantime is killed.

    It is killed itself if it cannot handle a signal because C code keeps Python's interpreter.

    On exit, processes that have lost their parents are killed, such as a worker that Ray started last.
    """

    def __init__(self, root: Path, received: Sequence[int] = ()) -> None:
        """`received` are sockets in which a signal is found that this process has received."""
        self._root, self._received = root, received
        self._watcher: subprocess.Popen[bytes] | None = None
        self._before: str | None = None

    def __enter__(self) -> Watcher:
        if not Path("/proc").is_dir() or not hasattr(os, "pidfd_open"):
            return self
        self._mark = f"{os.getpid()}.{_start(os.getpid())}:{self._root.absolute()}"
        self._watcher = subprocess.Popen(
            # As a file and with -P, so that no module of the user's folder is imported in place of psutil.
            [sys.executable, "-P", __file__, self._mark, *map(str, self._received)],
            pass_fds=self._received,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # It may outlive the driver, and must not keep a file system busy.
            cwd="/",
            # With the mark the watcher would be one of the processes that it kills.
            env={key: value for key, value in os.environ.items() if key != MARK},
            start_new_session=True,  # Ctrl-C is for the driver
        )
        self._before = os.environ.get(MARK)
        os.environ[MARK] = self._mark
        return self

    def __exit__(self, *exception: object) -> None:
        if self._watcher is None:
            return
        if self._before is None:
            os.environ.pop(MARK, None)
        else:
            os.environ[MARK] = self._before
        self._watcher.kill()
        self._watcher.wait()
        until = time.monotonic() + CLEAN_UP_S
        while (left := marked(self._mark) - with_descendants([psutil.Process()])) and time.monotonic() < until:
            _kill(left)
            time.sleep(0.05)


def watch(mark: str, received: Sequence[socket.socket]) -> None:
    """Wait for the marked driver to end, or end it if a signal does not; then end what it has left behind."""
    driver, me = _driver(mark), psutil.Process()
    # In a notebook the driver's process has had children before the sweep; they are none of its business.
    strangers = {me} | {process for process in with_descendants([driver] if driver else ()) if _is_older(process, me)}
    known: set[psutil.Process] = set()
    with suppress(ProcessLookupError):  # raised if the driver ended before this process had started
        waiting = select.poll()
        # A pidfd stays that of this process even if another one has its number later.
        waiting.register(os.pidfd_open(int(mark.partition(".")[0])), select.POLLIN)
        young_until = time.monotonic() + YOUNG_S
        look_s, signalled_s = LOOK_AT_YOUNG_S, math.inf
        while driver and not waiting.poll(1000 * look_s):
            known = with_descendants([driver]) - strangers - {driver}
            now_s = time.monotonic()
            signalled_s = min(signalled_s, now_s) if any(map(_has_signal, received)) else math.inf
            if now_s - signalled_s > IGNORED_S:
                driver.kill()
            # Walking over all processes takes milliseconds of a core, which a running trial should not miss.
            look_s = LOOK_EVERY_S if now_s > young_until and signalled_s == math.inf else LOOK_AT_YOUNG_S
    until = time.monotonic() + CLEAN_UP_S
    while (known := with_descendants(known | marked(mark)) - strangers) and time.monotonic() < until:
        _kill(known)
        time.sleep(0.1)


def _has_signal(received: socket.socket) -> bool:
    """Return whether the socket has a signal that asks the driver to end."""
    try:
        numbers = received.recv(1000, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return not {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}.isdisjoint(numbers)


def _is_older(process: psutil.Process, than: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.create_time() < than.create_time())
    return True


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()


if __name__ == "__main__":
    watch(sys.argv[1], [socket.socket(fileno=int(number)) for number in sys.argv[2:]])
