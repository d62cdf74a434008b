"""A command and every process that it started, ended together, even if the process that runs the command is killed.

The command is the child of a guard, which is this module run as a script. The guard is a subreaper: the kernel gives it
each descendant whose parent has ended, so that no process leaves the tree by a new session or another environment.

Between this process and the guard stands a launcher that only waits. Ray kills the children of the processes that it
ends, but no grandchildren: the guard outlives its rank, and until then the tree is among the rank's descendants, where
telemetry looks for it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil

LOOK_EVERY_S = 1.0
PROGRESS = 0.01
"""Share of one core that counts as progress: an interpreter that waits, or a logger's heartbeat, uses less."""

IDLE_CORES = 0.02  # a launcher that waits for its processes uses less
BUSY_SHARE = 0.1  # a process that trains uses at least this share of what the busiest one uses
START_S = 60.0  # the longest that the guard may take to start
KILL_S = 5.0  # how long killed processes may take to end: a process that waits for a broken disk never does

_PR_SET_CHILD_SUBREAPER = 36


class GuardLostError(RuntimeError):
    """The guard of a command was killed, so that the exit status of the command is unknown."""


class Tree:
    """A started command, its descendants and their guard."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        output: tuple[BinaryIO, BinaryIO],
        grace_s: float,
    ) -> None:
        """Start the command with `output` as its stdout and stderr. Raises OSError if it cannot be started."""
        self._control, theirs = socket.socketpair()
        self._received = b""
        self._patience_s = grace_s + 2 * KILL_S
        self._give_up_at = math.inf
        with theirs:
            self._launcher = subprocess.Popen(
                [sys.executable, "-P", __file__],
                stdin=theirs.fileno(),
                stdout=output[0],
                stderr=output[1],
                start_new_session=True,
            )
        command = {"words": list(words), "environment": dict(environment), "cwd": str(cwd), "grace_s": grace_s}
        try:
            self._control.settimeout(START_S)
            self._control.sendall(json.dumps(command).encode() + b"\n")
            start = self._message()
            if "error" in start:
                number, text, name = start["error"]
                raise OSError(number, text, name)
        except BaseException:
            self._close()
            raise
        self.pid: int = start["pid"]
        self._guard_pid: int = start["guard_pid"]

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status of the command (negative: a signal); None if it still runs. Raises GuardLostError."""
        self._control.settimeout(timeout_s)
        try:
            return int(self._message()["exit"])
        except TimeoutError:
            return None

    def begin_to_end(self) -> None:
        """Let the guard end all processes of the tree; the same happens if this process is killed."""
        self._give_up_at = min(self._give_up_at, time.monotonic() + self._patience_s)
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
            # The command may have stopped its guard.
            os.kill(self._guard_pid, signal.SIGCONT)

    def survivors(self, timeout_s: float) -> list[str] | None:
        """Return the processes that could not be ended, after `begin_to_end`; None if the guard needs more time."""
        self._control.settimeout(timeout_s)
        try:
            message = self._message()
        except TimeoutError:
            if time.monotonic() < self._give_up_at:
                return None
            root = self._guard_pid  # the command stops its guard again and again
        except GuardLostError:
            root = self.pid  # the other processes have other parents by now
        else:
            if "survivors" not in message:
                return None  # the command ended by itself in the meantime
            self._close()
            return list(message["survivors"])
        for process in descendants(root):
            with suppress(psutil.Error):
                process.kill()
        self._close()
        return []

    def _close(self) -> None:
        """Close the connection to the guard: it ends, and then the launcher."""
        self._control.close()
        with suppress(subprocess.TimeoutExpired):  # the guard waits for a broken disk
            self._launcher.wait(KILL_S)

    def _message(self) -> dict[str, Any]:
        while b"\n" not in self._received:
            data = self._control.recv(4096)
            if not data:
                raise GuardLostError("the process that watches the command was killed")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


class CpuTimes:
    """The CPU times of a tree's processes: whether they work, and on how many cores between the command's reports."""

    def __init__(self) -> None:
        self._looks: dict[str, tuple[float, dict[int, float]]] = {}
        """The earliest look, the first with a report and the latest: when it was, and the CPU time of each process."""
        self._looked_s = -math.inf
        self._has_reported = False
        self._total = self._grown_total = 0.0
        self._names: dict[int, str] = {}
        self._grew_s = time.monotonic()

    def look(self, pid: int, *, reported: bool) -> None:
        """Read the times of the tree of `pid` once a second; `reported`: whether the command has just reported."""
        self._has_reported |= reported
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        seconds: dict[int, float] = {}
        self._total, self._looked_s = 0.0, now_s
        for process in descendants(pid):
            with suppress(psutil.Error):
                times, name = process.cpu_times(), self._names.get(process.pid) or process.name()
                seconds[process.pid], self._names[process.pid] = sum(times[:2]), name
                self._total += sum(times[:4])  # with those of its children that have ended
        self._looks.setdefault("earliest", (now_s, seconds))
        # Once the command has reported, what follows its last report is no training.
        if self._has_reported or "reported" not in self._looks:
            self._looks["latest"] = now_s, seconds
        if self._has_reported:
            self._looks.setdefault("reported", (now_s, seconds))
        self._has_reported = False

    def has_grown(self) -> bool:
        """Return whether the processes used at least PROGRESS of a core since this was last true."""
        passed_s = self._looked_s - self._grew_s
        if passed_s <= 0 or abs(self._total - self._grown_total) < PROGRESS * passed_s:
            return False
        self._grew_s, self._grown_total = self._looked_s, self._total
        return True

    def cores(self) -> list[float]:
        """Return the cores that each busy process used, the busiest first; [] if they were not seen for a second."""
        return sorted(self._busy().values(), reverse=True)

    def names(self) -> dict[int, str]:
        """Return the names of the busy processes, by process id."""
        return {pid: self._names[pid] for pid in self._busy()}

    def _busy(self) -> dict[int, float]:
        """Return the cores that each busy process used, by process id; {} if they were not seen for a second."""
        for first in ("reported", "earliest"):
            if first not in self._looks:
                continue
            first_s, before = self._looks[first]
            latest_s, seconds = self._looks["latest"]
            if latest_s - first_s >= LOOK_EVERY_S:
                used = {pid: (seconds[pid] - before.get(pid, 0.0)) / (latest_s - first_s) for pid in seconds}
                least = max(IDLE_CORES, BUSY_SHARE * max(used.values(), default=0.0))
                return {pid: cores for pid, cores in used.items() if cores >= least}
        return {}


def descendants(pid: int) -> list[psutil.Process]:
    """Return the process and all that it started, as far as their parents still live."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; one that has ended is a zombie until its parent asks for its status."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


class _Guard:
    """The parent of the command: a process that the command cannot leave."""

    def __init__(self) -> None:
        self._control = socket.socket(fileno=0)
        self._command_pid = 0
        self._denied: set[int] = set()  # processes of other users, which only those may end

    def main(self) -> None:
        """Start the command, wait for its end and for the end of its parent, and end all its descendants."""
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # otherwise no child wakes the guard
        with self._control.makefile("rb") as requests:
            line = requests.readline()
        # The parent was killed while the guard started.
        if not line:
            return
        command = json.loads(line)
        try:
            process = subprocess.Popen(
                command["words"],
                cwd=command["cwd"],
                env=command["environment"],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._tell(error=[error.errno, error.strerror, error.filename])
            return
        except ValueError as error:  # a zero byte in a word
            self._tell(error=[errno.EINVAL, str(error), None])
            return
        self._command_pid = process.pid
        self._tell(pid=process.pid, guard_pid=os.getpid())
        self._reap()
        while True:
            ready, _, _ = select.select([self._control, woken], [], [])
            if self._control in ready:
                break
            woken.recv(4096)
            self._reap()
        self._tell(survivors=self._end(command["grace_s"]))

    def _tell(self, **message: Any) -> None:
        with suppress(OSError):  # the process that runs the command may be gone
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _reap(self) -> None:
        """Take the exit statuses of children that have ended, and tell that of the command."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._command_pid:
                self._tell(exit=os.waitstatus_to_exitcode(status))

    def _end(self, grace_s: float) -> list[str]:
        """Terminate all descendants, wait at most `grace_s`, and kill what is left; return what could not be ended."""
        kill_at = time.monotonic() + grace_s
        for process in self._living():
            self._signal(process, signal.SIGTERM)
            # A stopped process takes no other signal.
            self._signal(process, signal.SIGCONT)
        while self._living() and time.monotonic() < kill_at:
            time.sleep(0.02)
        give_up_at = time.monotonic() + KILL_S
        while (killed := self._living()) and time.monotonic() < give_up_at:
            # Processes may have been started in the meantime.
            for process in killed:
                self._signal(process, signal.SIGKILL)
            time.sleep(0.02)
        survivors = [process for process in psutil.Process().children(recursive=True) if is_alive(process)]
        return [_described(process) for process in survivors]

    def _living(self) -> list[psutil.Process]:
        """Return all living descendants that this user may end."""
        self._reap()
        descendants = psutil.Process().children(recursive=True)
        return [process for process in descendants if process.pid not in self._denied and is_alive(process)]

    def _signal(self, process: psutil.Process, number: int) -> None:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            pass  # it has ended
        except psutil.AccessDenied:
            self._denied.add(process.pid)


def _described(process: psutil.Process) -> str:
    try:
        return f"{process.name()} (process {process.pid}, of user {process.username()})"
    except psutil.Error:
        return f"process {process.pid}"


if __name__ == "__main__":
    if guard := os.fork():
        os.waitpid(guard, 0)
    else:
        _Guard().main()
