"""One run of a command: start it, read its output from files, stop it, and explain a failure."""

from __future__ import annotations

import codecs
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol
from uuid import uuid4

from trainables.command import process_tree
from trainables.context import DivergedError, TrialTimeoutError
from trainables.rank import OUT_OF_MEMORY_TEXTS

POLL_S = 0.1
"""Interval at which output, exit and stop requests are checked."""

LONGEST = 2**20
"""Characters after which a line is returned although it has no end yet."""

_LINE_ENDS = re.compile(r"\r\n|\n|\r")  # progress bars rewrite a line with \r
_PORTS = range(20_000, 30_000)
"""Outside the ranges from which the kernel and Ray choose ports."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, ready to be started."""

    words: Sequence[str]
    environment: Mapping[str, str]
    """The complete environment."""
    cwd: Path
    stdout: Path
    stderr: Path
    timeout_s: float | None
    grace_s: float


class StopRequest(Protocol):
    """Says whether to stop; `progress` is whether the command has made any since the last call."""

    def __call__(self, *, progress: bool) -> bool:
        """Return whether the command is to be stopped."""


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Functions that `run` calls while a command runs."""

    on_line: Callable[[str, str], None]
    """With each line of `stdout` and `stderr`."""
    should_stop: StopRequest
    on_open_line: Callable[[str], None] = lambda text: None
    """With a line that has no end yet, such as the latest state of a progress bar."""
    on_look: Callable[[], bool] = lambda: False
    """After the lines that have been read together; returns whether the command has reported."""
    ask_to_stop: Callable[[], bool] = lambda: False
    """Asks the command to stop by itself; returns whether it can."""


def run(command: Command, listener: Listener, cpu: process_tree.CpuTimes) -> int | None:
    """Run the command to its end, calling the listener; `cpu` gets the CPU times of its processes.

    Returns the exit status (negative: the signal that killed it), or None if it was stopped because `should_stop()` was
    true. None of its processes is left when this function returns or raises, or when this process is killed. Raises
    TrialTimeoutError, OSError if the command cannot be started, and whatever the listener raises.
    """
    streams = {"stdout": OutputLines(command.stdout), "stderr": OutputLines(command.stderr)}
    started = time.monotonic()
    stop_by: float | None = None
    with _started(command) as process:
        progress = True
        while True:
            try:
                exit_code = process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                exit_code = None
            for stream, output in streams.items():
                for line in output.new(ended=exit_code is not None):
                    listener.on_line(stream, line)
                    progress = True
                if output.open_line:
                    listener.on_open_line(output.open_line)
            cpu.look(process.pid, reported=listener.on_look())
            now = time.monotonic()
            if exit_code is not None:
                return exit_code if stop_by is None else None
            if stop_by is not None and now > stop_by:
                return None
            if stop_by is None and listener.should_stop(progress=progress or cpu.has_grown()):
                if not listener.ask_to_stop():
                    return None
                stop_by = now + command.grace_s
            progress = False
            if command.timeout_s and now - started > command.timeout_s:
                raise TrialTimeoutError(f"the command ran longer than timeout_s={command.timeout_s:g}")


@contextmanager
def _started(command: Command) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command in a new session; on leaving the block, end all that is left of its process tree."""
    # Processes that leave the session still have the token in their environment.
    token = uuid4().hex
    environment = {**command.environment, process_tree.TOKEN: token}
    with _new_file(command.stdout) as out, _new_file(command.stderr) as err:
        process = subprocess.Popen(
            list(command.words),
            cwd=command.cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    guard = -1
    try:
        guard = process_tree.guard(process.pid, token, command.grace_s, environment)
        yield process
    finally:
        process_tree.end(process.pid, token, command.grace_s)
        process.wait()
        if guard >= 0:
            process_tree.dismiss(guard)


def _new_file(path: Path) -> BinaryIO:
    """Open an empty file that only its owner can read. Raises OSError if the path is a link."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb")


def free_port() -> int:
    """Return a port of this machine on which nothing listens. Raises OSError if a hundred tries find none."""
    # Two trials that start together must not choose the same port, so seeds play no part.
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise OSError(f"no free port in {_PORTS}")


class OutputLines:
    """The lines that a process writes to a file, read without waiting; bytes that are not UTF-8 are replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self.open_line = ""
        """What has been read of a line that has no end yet."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def new(self, *, ended: bool = False) -> Iterator[str]:
        """Yield the lines written since the last call; with `ended`, also a last line without a line end."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                while data := file.read(LONGEST):
                    self._offset += len(data)
                    *lines, self.open_line = _LINE_ENDS.split(self.open_line + self._decoder.decode(data))
                    if len(self.open_line) > LONGEST:
                        lines, self.open_line = [*lines, self.open_line], ""
                    yield from lines
        # A program that is killed leaves its last line without an end.
        if ended and self.open_line:
            line, self.open_line = self.open_line, ""
            yield line


_MEMORY_ERRORS = (
    *map(re.escape, OUT_OF_MEMORY_TEXTS),
    r"(^|\s)MemoryError\b",
    r"\bOutOfMemoryError\b",
    r"\bstd::bad_alloc\b",
)
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?([\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)")
_SIGNALS = {int(known): known.name for known in signal.Signals}
_NOT_THE_CAUSE = re.compile(r"ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException")


class CommandError(Exception):
    """The command failed, for a reason that is neither memory nor divergence."""


class FailureCause:
    """The cause of a command's failure, found in its output and exit status."""

    def __init__(self, oom_patterns: Iterable[str], diverged_patterns: Iterable[str]) -> None:
        self._memory = [re.compile(pattern) for pattern in (*_MEMORY_ERRORS, *oom_patterns)]
        self._diverged = [re.compile(pattern) for pattern in diverged_patterns]
        self._memory_line = self._diverged_line = self._error_line = self._last_line = ""

    def read(self, stream: str, line: str) -> None:
        """Take a line of output; the first line of each kind counts."""
        text = line.strip()
        if not text:
            return
        if not self._memory_line and any(pattern.search(text) for pattern in self._memory):
            self._memory_line = text
        if not self._diverged_line and any(pattern.search(text) for pattern in self._diverged):
            self._diverged_line = text
        if stream == "stderr":
            self._last_line = text
            match = _ERROR.match(text)
            if match and not self._error_line and not _NOT_THE_CAUSE.search(text):
                self._error_line = match[1]

    def check(self, exit_code: int, ok_exit_codes: Sequence[int]) -> None:
        """Raise MemoryError, DivergedError or CommandError unless the command succeeded.

        A command that reports a lack of memory may still succeed. One that diverged has not, whatever its status.
        """
        # A script that catches its own NaN ends with status 0.
        if self._diverged_line:
            raise DivergedError(self._diverged_line)
        if exit_code in ok_exit_codes:
            return
        # The last error may be another rank's broken connection.
        if self._memory_line:
            raise MemoryError(self._memory_line)
        message = self._error_line or self._last_line
        exit_text = f"ended with status {exit_code}"
        if exit_code < 0:
            name = _SIGNALS.get(-exit_code, f"signal {-exit_code}")
            hint = ", as by the kernel's out-of-memory killer" if name == "SIGKILL" else ""
            exit_text = f"was killed by {name}{hint}"
        raise CommandError(f"the command {exit_text}" + (f": {message}" if message else ""))
