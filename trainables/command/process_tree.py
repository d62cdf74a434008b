"""A command and all that it started, ended as a whole; run as a script, the guard that does so for a dead parent.

A process belongs to the tree if it descends from the command, is in its process group, or carries the tree's token in
its environment: launchers start sessions of their own, and daemons let go of their parents.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

import psutil

TOKEN = "SWEEP_ATTEMPT"
"""The environment variable that tells one attempt's processes from all others."""


def members(pid: int, token: str) -> list[psutil.Process]:
    """The living processes of the tree, except this one."""
    found = {process.pid: process for process in psutil.process_iter() if _belongs(process, pid, token)}
    try:
        found |= {child.pid: child for child in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        pass  # the command itself is gone; what it left behind has the token
    return [process for key, process in found.items() if key != os.getpid() and _lives(process)]


def end(pid: int, token: str, grace_s: float) -> int:
    """Ask all of the tree to end, wait so long, and kill what is left; how many there were."""
    there = members(pid, token)
    for process in there:
        _signal(process, kill=False)
    deadline = time.monotonic() + grace_s
    left = there
    while left and time.monotonic() < deadline:
        _, left = psutil.wait_procs(left, timeout=0.05)
        left = [process for process in left if _lives(process)]
    while killed := members(pid, token):  # whoever was started in the meantime, too
        for process in killed:
            _signal(process, kill=True)
        psutil.wait_procs(killed, timeout=0.2)
    return len(there)


def guard(pid: int, token: str, grace_s: float, environment: Mapping[str, str]) -> int:
    """Start a process that ends the tree once this process is gone, however it went; a descriptor that holds it off.

    Give the descriptor to `dismiss` once the tree has ended.
    """
    reading, writing = os.pipe()
    own = {key: value for key, value in environment.items() if key != TOKEN}
    arguments = [sys.executable, "-P", __file__, str(pid), token, str(grace_s)]
    try:
        # It starts a process that outlives it, because Ray kills the children of the processes that it ends.
        subprocess.run(arguments, stdin=reading, env=own, start_new_session=True, check=True, timeout=60)
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return writing


def dismiss(descriptor: int) -> None:
    """Let a guard go, without a look at processes that may have got the same number since."""
    try:
        os.write(descriptor, b"!")
    except BrokenPipeError:
        pass  # it was killed before
    finally:
        os.close(descriptor)


def _belongs(process: psutil.Process, pid: int, token: str) -> bool:
    try:
        return process.pid == pid or os.getpgid(process.pid) == pid or process.environ().get(TOKEN) == token
    except (psutil.Error, OSError):
        return False  # gone meanwhile, or another user's


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        (process.kill if kill else process.terminate)()
    except psutil.NoSuchProcess:
        pass  # it ended by itself


def _watch(pid: int, token: str, grace_s: float) -> None:
    """Wait in a process of its own until nobody holds the other end of stdin; then end the tree."""
    if os.fork():
        return
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    if not os.read(0, 1):
        end(pid, token, grace_s)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
