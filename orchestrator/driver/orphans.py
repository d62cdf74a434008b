"""No process outlives its driver, however the driver ends: a small process of its own waits for that, and cleans up.

Ray's own agents outlive a killed driver by half a minute or for good. What belongs to a driver is known by its parents,
looked at every few seconds, and by a mark in the environment that it was started with; programs that write their title
over their environment (Ray's agents do) lose the mark, but not their parents. Linux only (/proc, pidfd); elsewhere
nothing is watched. This file is also the watcher's program, and so it needs nothing but the standard library.
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
"""The environment variable that says to which driver a process belongs: `<pid>.<start>:<results directory>`."""

LOOK_EVERY_S = 5.0
YOUNG_S, LOOK_AT_YOUNG_S = 60.0, 0.5
"""So long after a driver's start most of its processes come, and Ray's agents, once their raylet has died with the
driver, are known only to who has seen them below it.
"""
CLEAN_UP_S = 8.0
"""How long what is left is killed again and again: new processes may come from ones that are just ending."""

_PROC = Path("/proc")


class Process(NamedTuple):
    """A process for good: a number that is given to another one has another start."""

    pid: int
    start: int
    """Clock ticks since the machine came up."""


def marks() -> dict[Process, str]:
    """The mark of each process of this user that has one."""
    name, found = f"{MARK}=".encode(), {}
    for process in everybody():
        for variable in _read(process.pid, "environ").split(b"\0"):
            if variable.startswith(name):
                found[process] = os.fsdecode(variable.removeprefix(name))
    return found


def left_over(root: Path) -> list[int]:
    """Processes of drivers of this results directory that are dead themselves."""
    alive, ending = set(everybody()), f":{root.absolute()}"
    return sorted(
        process.pid for process, mark in marks().items() if mark.endswith(ending) and _driver(mark) not in alive
    )


def _driver(mark: str) -> Process:
    pid, _, start = mark.partition(":")[0].partition(".")
    return Process(int(pid), int(start))


def everybody() -> Iterator[Process]:
    """All processes that live; a zombie does not."""
    for entry in os.listdir(_PROC) if _PROC.is_dir() else ():
        if entry.isdigit() and (state := _state(int(entry))):
            yield Process(int(entry), state[1])


def descendants(roots: Iterable[Process]) -> set[Process]:
    """These and all below them, as far as they live."""
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
    """Parent and start of a process; None for one that is gone or a zombie."""
    after_name = _read(pid, "stat").rpartition(b")")[2].split()
    return (int(after_name[1]), int(after_name[19])) if after_name and after_name[0] not in b"ZX" else None


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:  # it ended, or is another user's
        return b""


class Watcher:
    """While the `with` lasts, the death of this process takes everything with it that it has started meanwhile.

    The end of the `with` takes what has lost its parents by then, as a worker that Ray began to start at its last.
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
    """End whoever has the driver's mark and is not below it any more."""
    until, driver = time.monotonic() + CLEAN_UP_S, _driver(mark)
    while time.monotonic() < until:
        left = {process for process, its in marks().items() if its == mark} - descendants([driver]) - {driver}
        for process in left:
            _kill(process)
        if not left:
            return
        time.sleep(0.05)


def watch(mark: str) -> None:
    """Wait for the end of the driver that the mark names, then end what it has left."""
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
    except ProcessLookupError:  # it was faster than this process' start
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
    except (ProcessLookupError, PermissionError):  # gone, or never this user's to end
        pass


if __name__ == "__main__":
    watch(sys.argv[1])
