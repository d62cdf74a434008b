"""The process of a command: its surroundings, its output in files, and its end.

A command and all that it started, ended as a whole; run as a script, the guard that does so for a dead parent.

A process belongs to the tree if it descends from the command, is in its process group, or carries the tree's token in
its environment: launchers start sessions of their own, and daemons let go of their parents.

The lines that a process writes into a file, as they come.

Why a command failed, judged by its exit status and its output.
"""

from __future__ import annotations

import codecs
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import psutil

from trainables.context import DivergedError, TrialTimeoutError
from trainables.rank import OUT_OF_MEMORY_TEXTS

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


LONGEST = 2**20
"""Characters after which a line is given out although it has not ended."""

_ENDS = re.compile(r"\r\n|\n|\r")  # progress bars write lines over and over, with \r between them


class OutputLines:
    """A reader that never waits; bytes that are no UTF-8 are replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._partial = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def new(self, *, ended: bool = False) -> Iterator[str]:
        """The lines written since the last call; with `ended` the last one needs no line end."""
        while text := self._read():
            *lines, self._partial = _ENDS.split(self._partial + text)
            if len(self._partial) > LONGEST:
                lines, self._partial = [*lines, self._partial], ""
            yield from lines
        if ended and self._partial:
            line, self._partial = self._partial, ""
            yield line

    def _read(self) -> str:
        if not self.path.exists():
            return ""
        text, data = "", b"-"
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while data and not text:  # a part of a character is no text yet
                data = file.read(LONGEST)
                self._offset += len(data)
                text = self._decoder.decode(data)
        return text


POLL_S = 0.1
"""How often output is read, and the end and the wish to stop are looked for."""
_PORTS = range(20_000, 30_000)
"""Outside of what the kernel and Ray give out by themselves."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One run of a command, ready to be started."""

    words: Sequence[str]
    environment: Mapping[str, str]
    """All of it."""
    cwd: Path
    stdout: Path
    stderr: Path
    timeout_s: float | None
    grace_s: float


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended: by itself with an exit status (negative: the signal that killed it), or stopped."""

    exit_code: int
    stopped: bool


def run(command: Command, hear: Callable[[str, str], None], should_stop: Callable[[], bool]) -> Ended:
    """Run it to its end, calling `hear(stream, line)` for each line of `stdout` and `stderr`.

    None of its processes is left when this returns or raises, nor when this process is killed. Raises
    TrialTimeoutError, OSError for what cannot be started, and whatever `hear` raises.
    """
    streams = {"stdout": OutputLines(command.stdout), "stderr": OutputLines(command.stderr)}
    started = time.monotonic()
    with _started(command) as process:
        exit_code, stopped = None, False
        while exit_code is None and not stopped:
            exit_code = _wait(process, POLL_S)
            for stream, output in streams.items():
                for line in output.new(ended=exit_code is not None):
                    hear(stream, line)
            stopped = exit_code is None and should_stop()
            if command.timeout_s and exit_code is None and time.monotonic() - started > command.timeout_s:
                raise TrialTimeoutError(f"the command ran longer than timeout_s={command.timeout_s:g}")
    return Ended(exit_code=process.returncode, stopped=stopped)


def _anew(path: Path) -> BinaryIO:
    """An empty file for its owner alone; OSError where a link would lead elsewhere."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb")


@contextmanager
def _started(command: Command) -> Iterator[subprocess.Popen[bytes]]:
    """The process in a session of its own; whatever is left of its tree ends with the block."""
    token = uuid4().hex
    environment = {**command.environment, TOKEN: token}
    with _anew(command.stdout) as out, _anew(command.stderr) as err:
        process = subprocess.Popen(
            list(command.words),
            cwd=command.cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    hold = -1
    try:
        hold = guard(process.pid, token, command.grace_s, environment)
        yield process
    finally:
        end(process.pid, token, command.grace_s)
        process.wait()
        if hold >= 0:
            dismiss(hold)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def free_port() -> int:
    """A port of this machine that nothing listens on. OSError if a hundred tries find none."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise OSError(f"no free port in {_PORTS}")


_MEMORY_ERRORS = (
    *map(re.escape, OUT_OF_MEMORY_TEXTS),
    r"(^|\s)MemoryError\b",
    r"\bOutOfMemoryError\b",
    r"\bstd::bad_alloc\b",
)
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?([\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)")
_NOT_THE_CAUSE = re.compile(r"ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException")


class CommandError(Exception):
    """The command failed, for a reason that is neither memory nor divergence."""


class CommandEnding:
    """Listens to all that a command says, and explains its end."""

    def __init__(self, oom_patterns: Iterable[str], diverged_patterns: Iterable[str]) -> None:
        self._memory = [re.compile(pattern) for pattern in (*_MEMORY_ERRORS, *oom_patterns)]
        self._diverged = [re.compile(pattern) for pattern in diverged_patterns]
        self._memory_line = self._diverged_line = self._error_line = self._last_line = ""

    def hear(self, stream: str, line: str) -> None:
        """Take a line of `stdout` or `stderr`; the first that tells of memory counts, and the first error."""
        text = line.strip()
        if not text:
            return
        if not self._memory_line and any(pattern.search(text) for pattern in self._memory):
            self._memory_line = text
        if not self._diverged_line and any(pattern.search(text) for pattern in self._diverged):
            self._diverged_line = text
        if stream == "stderr":
            self._last_line = text
            found = _ERROR.match(text)
            if found and not self._error_line and not _NOT_THE_CAUSE.search(text):
                self._error_line = found[1]

    def check(self, exit_code: int, ok_exit_codes: Sequence[int]) -> None:
        """Raise MemoryError, DivergedError or CommandError unless it ended well.

        A command that speaks of memory and yet succeeds has helped itself; one that diverged may still succeed.
        """
        if self._diverged_line:
            raise DivergedError(self._diverged_line)
        if exit_code in ok_exit_codes:
            return
        if self._memory_line:
            raise MemoryError(self._memory_line)
        exit_message = self._error_line or self._last_line
        raise CommandError(f"the command {_how(exit_code)}" + (f": {exit_message}" if exit_message else ""))


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", as by the kernel's out-of-memory killer" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
