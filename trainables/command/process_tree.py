"""A command and every process that it started, ended together, even if the process that runs the command is killed.

A process belongs to the tree if it descends from the command, is in its process group, or has the tree's token in its
environment: launchers start new sessions, and daemons leave their parents. PR_SET_PDEATHSIG would reach the
command alone, and fires when a thread ends. Therefore a guard, this module run as a script, waits until its parent is
gone and ends the tree. It imports psutil only, so that it starts quickly and needs no path to this package.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

import psutil

TOKEN = "SWEEP_ATTEMPT"
"""The environment variable that marks the processes of one attempt."""

LOOK_EVERY_S = 1.0
PROGRESS = 0.01
"""Share of one core that counts as progress: an interpreter that waits, or a logger's heartbeat, uses less."""

IDLE_CORES = 0.02
"""A launcher that waits for its processes uses less."""

BUSY_SHARE = 0.1
"""A process that trains uses at least this share of what the busiest one uses."""


def members(pid: int, token: str) -> list[psutil.Process]:
    """Return the living processes of the tree, except this one."""
    tree = {process.pid: process for process in psutil.process_iter() if _belongs(process, pid, token)}
    try:
        tree |= {child.pid: child for child in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        pass  # the command itself is gone; what it left behind has the token
    return [process for key, process in tree.items() if key != os.getpid() and _is_alive(process)]


def end(pid: int, token: str, grace_s: float) -> int:
    """Terminate the tree, wait at most `grace_s`, and kill what is left; return how many processes there were."""
    there = members(pid, token)
    for process in there:
        _signal(process, kill=False)
    deadline = time.monotonic() + grace_s
    left = there
    while left and time.monotonic() < deadline:
        _, left = psutil.wait_procs(left, timeout=0.05)
        left = [process for process in left if _is_alive(process)]
    while killed := members(pid, token):  # includes processes that were started in the meantime
        for process in killed:
            _signal(process, kill=True)
        psutil.wait_procs(killed, timeout=0.2)
    return len(there)


def guard(pid: int, token: str, grace_s: float, environment: Mapping[str, str]) -> int:
    """Start a process that ends the tree once this process is gone.

    Returns a descriptor; give it to `dismiss` once the tree has ended.
    """
    reading, writing = os.pipe()
    own = {key: value for key, value in environment.items() if key != TOKEN}
    arguments = [sys.executable, "-P", __file__, str(pid), token, str(grace_s)]
    try:
        # The script forks and returns, because Ray kills the children of the processes that it ends.
        subprocess.run(arguments, stdin=reading, env=own, start_new_session=True, check=True, timeout=60)
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return writing


def dismiss(descriptor: int) -> None:
    """Let a guard exit without ending anything: other processes may have the same ids by now."""
    try:
        os.write(descriptor, b"!")
    except BrokenPipeError:
        pass  # the guard was killed
    finally:
        os.close(descriptor)


class CpuTimes:
    """The CPU times of a tree's processes: whether they work, and on how many cores between the command's reports."""

    def __init__(self) -> None:
        self._earliest: dict[int, float] | None = None
        self._first: dict[int, float] | None = None
        self._latest: dict[int, float] = {}
        self._earliest_s = self._first_s = self._latest_s = self._looked_s = -math.inf
        self._has_reported = False
        self._total = self._grown_total = 0.0
        self._grew_s = time.monotonic()

    def look(self, pid: int, *, reported: bool) -> None:
        """Read the times of the tree of `pid` once a second; `reported`: whether the command has just reported."""
        self._has_reported |= reported
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        seconds, self._total, self._looked_s = {}, 0.0, now_s
        for process in descendants(pid):
            with suppress(psutil.Error):
                times = process.cpu_times()
                seconds[process.pid] = sum(times[:2])
                self._total += sum(times[:4])  # with those of its children that have ended
        if self._first is None or self._has_reported:
            self._latest, self._latest_s = seconds, now_s
        if self._earliest is None:
            self._earliest, self._earliest_s = seconds, now_s
        if self._has_reported and self._first is None:
            self._first, self._first_s = seconds, now_s
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
        first, first_s = self._first, self._first_s
        if first is None or self._latest_s - first_s < LOOK_EVERY_S:
            first, first_s = self._earliest, self._earliest_s
        span_s = self._latest_s - first_s
        if first is None or span_s < LOOK_EVERY_S:
            return []
        used = sorted(((self._latest[pid] - first.get(pid, 0.0)) / span_s for pid in self._latest), reverse=True)
        return [cores for cores in used if cores >= max(IDLE_CORES, BUSY_SHARE * used[0])]


def descendants(pid: int) -> list[psutil.Process]:
    """Return the process and all that it started, as far as their parents still live."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _belongs(process: psutil.Process, pid: int, token: str) -> bool:
    try:
        return process.pid == pid or os.getpgid(process.pid) == pid or process.environ().get(TOKEN) == token
    except (psutil.Error, OSError):
        return False  # it has ended, or belongs to another user


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        (process.kill if kill else process.terminate)()
    except psutil.NoSuchProcess:
        pass  # it has ended


def main() -> None:
    """Fork, wait until no process holds the other end of stdin, and end the tree unless dismissed."""
    pid, token, grace_s = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    if os.fork():
        return
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    if not os.read(0, 1):
        end(pid, token, grace_s)


if __name__ == "__main__":
    main()
