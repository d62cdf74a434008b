"""Ensures that no process outlives its driver: a small watcher process waits for the driver's end and cleans up.

Ray's own agents outlive a killed driver by half a minute or for good. A driver's processes are recognised by their
parents, checked every few seconds, and by a mark in their initial environment; programs that write their title over
their environment (Ray's agents do) lose the mark, but not their parents. Linux only (/proc, pidfd); elsewhere nothing
is watched. This file is also the watcher's program, so it may import only the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

MARK = "ORCHESTRATOR_DRIVER"
"""Environment variable naming the driver of a process: `<pid>.<start>:<results directory>`."""

LOOK_EVERY_S = 5.0
YOUNG_S, LOOK_AT_YOUNG_S = 60.0, 0.5
"""Seconds after a driver's start within which most of its processes appear. Once the raylet has died with the driver,
Ray's agents can be recognised only by a watcher that has seen them below it.
"""
CLEAN_UP_S = 8.0
"""Seconds for which leftovers are killed repeatedly: processes that are just ending may still start new ones."""

_PROC = Path("/proc")


class Process(NamedTuple):
    """A process identity that survives pid reuse: another process with the same pid has another start time.

    The driver and its watcher must read the same start time, also if somebody sets the clock in between. psutil's start
    times come from the wall clock.
    """

    pid: int
    start: int
    """In clock ticks since boot."""


def marks() -> dict[Process, str]:
    """The marks of this user's processes, for those that have one."""
    name, found = f"{MARK}=".encode(), {}
    for process in everybody():
        for variable in _read(process.pid, "environ").split(b"\0"):
            if variable.startswith(name):
                found[process] = os.fsdecode(variable.removeprefix(name))
    return found


def left_over(root: Path) -> list[int]:
    """Processes whose drivers, on this results directory, are dead."""
    alive, ending = set(everybody()), f":{root.absolute()}"
    return sorted(
        process.pid for process, mark in marks().items() if mark.endswith(ending) and _driver(mark) not in alive
    )


def _driver(mark: str) -> Process:
    pid, _, start = mark.partition(":")[0].partition(".")
    return Process(int(pid), int(start))


def everybody() -> Iterator[Process]:
    """All live processes, without zombies."""
    for entry in os.listdir(_PROC) if _PROC.is_dir() else ():
        if entry.isdigit() and (state := _state(int(entry))):
            yield Process(int(entry), state[1])


def descendants(roots: Iterable[Process]) -> set[Process]:
    """The given processes and all their descendants that are alive."""
    states = {int(entry): state for entry in os.listdir(_PROC) if entry.isdigit() if (state := _state(int(entry)))}
    found = {process for process in roots if process.pid in states and states[process.pid][1] == process.start}
    while more := {
        Process(pid, start)
        for pid, (parent, start) in states.items()
        if parent in {each.pid for each in found} and Process(pid, start) not in found
    }:
        found |= more
    return found


def _state(pid: int) -> tuple[int, int] | None:
    """Parent and start time of a process; None if it is gone or a zombie."""
    after_name = _read(pid, "stat").rpartition(b")")[2].split()
    return (int(after_name[1]), int(after_name[19])) if after_name and after_name[0] not in b"ZX" else None


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:  # it ended, or belongs to another user
        return b""


class Watcher:
    """Context manager: if this process dies, everything that it has started in the meantime is killed.

    On exit, processes that have lost their parents are killed, such as a worker that Ray started last.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._watcher: subprocess.Popen[bytes] | None = None
        self._before: str | None = None

    def __enter__(self) -> Watcher:
        if not _PROC.is_dir() or not hasattr(os, "pidfd_open"):
            return self
        me = os.getpid()
        state = _state(me)
        assert state is not None
        self._mark = mark = f"{me}.{state[1]}:{self._root.absolute()}"
        environment: Mapping[str, str] = {key: value for key, value in os.environ.items() if key != MARK}
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,  # Ctrl-C is for the driver
        )
        self._before = os.environ.get(MARK)
        os.environ[MARK] = mark
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
        _end_abandoned(self._mark)


def _end_abandoned(mark: str) -> None:
    """End all processes that have the driver's mark but are no longer its descendants."""
    until, driver = time.monotonic() + CLEAN_UP_S, _driver(mark)
    while time.monotonic() < until:
        left = {process for process, its in marks().items() if its == mark} - descendants([driver]) - {driver}
        for process in left:
            _kill(process)
        if not left:
            return
        time.sleep(0.05)


def watch(mark: str) -> None:
    """Wait for the marked driver to end, then end everything that it has left behind."""
    driver = _driver(mark)
    me = os.getpid()
    mine = _state(me)
    started = mine[1] if mine else 0
    strangers = {each for each in descendants([driver]) if each.start < started or each.pid in (me, driver.pid)}
    known: set[Process] = set()
    try:
        waiting = select.poll()
        waiting.register(os.pidfd_open(driver.pid), select.POLLIN)
        young_until = time.monotonic() + YOUNG_S
        while not waiting.poll(1000 * (LOOK_AT_YOUNG_S if time.monotonic() < young_until else LOOK_EVERY_S)):
            known = descendants([driver]) - strangers
    except ProcessLookupError:  # it ended before this process had started
        pass
    until = time.monotonic() + CLEAN_UP_S
    while time.monotonic() < until:
        known = descendants(known | {process for process, its in marks().items() if its == mark}) - strangers
        for process in known:
            _kill(process)
        if not known:
            return
        time.sleep(0.1)


def _kill(process: Process) -> None:
    try:
        os.kill(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone, or owned by another user
        pass


if __name__ == "__main__":
    watch(sys.argv[1])
