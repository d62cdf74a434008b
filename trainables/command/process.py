"""One run of a command: start it, read its output in bounded amounts, stop it, and explain a failure."""

from __future__ import annotations

import codecs
import os
import re
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sweeps.rank_exit import CONNECTION_ERROR
from trainables.command.process_tree import CpuTimes, Tree
from trainables.context import DivergedError, PortInUseError, TrialTimeoutError
from trainables.rank import OUT_OF_MEMORY_TEXTS, PORT_IN_USE

POLL_S = 0.1  # interval at which output, exit and stop requests are checked
LONGEST = 2**20  # characters after which a line is returned although it has no end yet

SEARCHED = 2**11
"""Characters of a line in which patterns are searched: many patterns take quadratic time on long lines."""

CHUNK = 2**16  # bytes that are read at once
READ_S, READ_LAST_S = 0.2, 2.0  # the longest time for reading lines at each poll, and after the command's end

BACKLOG, BACKLOG_KEPT = 2**23, 2**16
"""If more bytes than BACKLOG are unread after a poll, all but the last BACKLOG_KEPT are skipped."""

LOG_MOST, LOG_KEPT = 2**24, 2**21
"""A log of more bytes than LOG_MOST is cut to its first and last LOG_KEPT bytes."""

_LINE_ENDS = re.compile(r"\r\n|\n|\r")  # progress bars rewrite a line with \r


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, ready to be started."""

    words: Sequence[str]
    environment: Mapping[str, str]  # the complete environment
    cwd: Path
    stdout: Path
    stderr: Path
    timeout_s: float | None
    grace_s: float


class CommandListener:
    """Receives the events of a command while `run` runs it."""

    def on_line(self, stream: str, line: str) -> None:
        """Take a line of `stdout` or `stderr`."""

    def on_open_line(self, text: str) -> None:
        """Take a line that has no end yet, such as the latest state of a progress bar."""

    def on_look(self) -> bool:
        """Return whether the command has reported; called after the lines that have been read together."""
        return False

    def should_stop(self, *, progress: bool) -> bool:
        """Return whether to stop the command; `progress`: whether it has made any since the last call."""
        return False

    def ask_to_stop(self) -> bool:
        """Ask the command to stop by itself; return whether it can."""
        return False


@dataclass(frozen=True, kw_only=True)
class CommandExit:
    """How a command ended."""

    status: int | None
    """The exit status (negative: the signal that killed it); None if it was stopped by `should_stop()`."""
    remarks: Sequence[str]  # what a reader of the trial's row should know


def run(command: Command, listener: CommandListener, cpu: CpuTimes) -> CommandExit:
    """Run the command to its end, calling the listener; `cpu` gets the CPU times of its processes.

    It leaves no process that this user may end. Raises TrialTimeoutError, OSError if the command cannot be started, and
    the errors of the listener.
    """
    streams = {"stdout": OutputLines(command.stdout), "stderr": OutputLines(command.stderr)}
    with _new_file(command.stdout) as out, _new_file(command.stderr) as err:
        tree = Tree(command.words, command.environment, command.cwd, (out, err), command.grace_s)
    survivors: list[str] | None = None
    try:
        status, timed_out = _watched(tree, command, listener, cpu, streams)
    finally:
        tree.begin_to_end()
        while survivors is None:
            survivors = tree.survivors(POLL_S)
            # A command that ignores SIGTERM may go on printing.
            for output in streams.values():
                output.shorten()
    remarks = [remark for stream, output in streams.items() for remark in output.remarks(stream)]
    remarks += [f"{survivor} could not be ended, and still runs" for survivor in survivors]
    if timed_out:
        raise TrialTimeoutError("; ".join([timed_out, *remarks]))
    return CommandExit(status=status, remarks=remarks)


def _watched(
    tree: Tree, command: Command, listener: CommandListener, cpu: CpuTimes, streams: Mapping[str, OutputLines]
) -> tuple[int | None, str]:
    """Return the exit status of the command, None if it was stopped, and a message if its time is over."""
    started = time.monotonic()
    stop_by: float | None = None
    progress = True
    while True:
        status = tree.wait(POLL_S)
        # What the command leaves behind may print for ever.
        if status is not None:
            tree.begin_to_end()
        for stream, output in streams.items():
            for line in output.new(ended=status is not None):
                listener.on_line(stream, line)
                progress = True
            if output.open_line:
                listener.on_open_line(output.open_line)
            output.shorten()
        cpu.look(tree.pid, reported=listener.on_look())
        now = time.monotonic()
        if status is not None:
            return (status if stop_by is None else None), ""
        if stop_by is not None and now > stop_by:
            return None, ""
        if stop_by is None and listener.should_stop(progress=progress or cpu.has_grown()):
            if not listener.ask_to_stop():
                return None, ""
            stop_by = now + command.grace_s
        progress = False
        if command.timeout_s and now - started > command.timeout_s:
            return None, f"the command ran longer than timeout_s={command.timeout_s:g}"


def _new_file(path: Path) -> BinaryIO:
    """Open an empty file that only its owner can read. Raises OSError if the path is a link."""
    # With O_APPEND the command writes to the end of a log that `shorten` has cut.
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600), "wb")


class OutputLines:
    """The lines that a process writes to a file, read without waiting; bytes that are not UTF-8 are replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self.open_line = ""  # what has been read of a line that has no end yet
        self._lines: deque[str] = deque()  # lines that have been read and not returned yet
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_inside_line = False  # whether the beginning of the next line was skipped
        self._skipped = self._removed = 0
        """Bytes that were not read because there were too many, and bytes that were removed from the log."""

    def new(self, *, ended: bool = False) -> Iterator[str]:
        """Yield lines written since the last call, with `ended` also an unfinished one; a long backlog is skipped."""
        # A pipe or a device would make the reader wait.
        if self.path.is_file():
            yield from self._timely(READ_LAST_S if ended else READ_S)
            unread = self.path.stat().st_size - self._offset
            if unread > (BACKLOG_KEPT if ended else BACKLOG):
                self._skip(unread - BACKLOG_KEPT)
            if ended:
                yield from self._timely(READ_LAST_S)
                if self._lines:
                    self._skip(self.path.stat().st_size - self._offset)
        # A program that is killed leaves its last line without an end.
        if ended and self.open_line:
            line, self.open_line = self.open_line, ""
            yield line

    def _timely(self, seconds: float) -> Iterator[str]:
        """Yield lines until none is left, or the time is over."""
        until = time.monotonic() + seconds
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while True:
                while self._lines:
                    if time.monotonic() > until:
                        return
                    yield self._lines.popleft()
                # A line without an end returns nothing until it is LONGEST.
                data = file.read(CHUNK) if time.monotonic() <= until else b""
                if not data:
                    return
                self._offset += len(data)
                *lines, self.open_line = _LINE_ENDS.split(self.open_line + self._decoder.decode(data))
                if self._is_inside_line and lines:
                    # A part of a number would be another number.
                    self._is_inside_line = False
                    del lines[0]
                elif self._is_inside_line:
                    self.open_line = ""
                if len(self.open_line) > LONGEST:
                    lines, self.open_line = [*lines, self.open_line], ""
                self._lines.extend(lines)

    def _skip(self, unread: int) -> None:
        """Skip so many unread bytes, and the lines that wait to be returned."""
        self._skipped += unread + sum(map(len, self._lines)) + len(self.open_line)
        self._offset += unread
        self._lines.clear()
        self.open_line = ""
        self._is_inside_line = True
        self._decoder.reset()

    def shorten(self) -> None:
        """Cut a log of more than LOG_MOST bytes to its head and tail; output that is written meanwhile may be lost."""
        # The command may have removed its log.
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size <= LOG_MOST:
            return
        with self.path.open("r+b") as file:
            file.seek(size - LOG_KEPT)
            tail = file.read(LOG_KEPT)
            file.truncate(LOG_KEPT)
        self._removed += size - 2 * LOG_KEPT
        with self.path.open("ab") as file:
            file.write(f"\n[… {self._removed / 1e6:.0f} MB are removed here …]\n".encode() + tail)
            end = file.tell()
        unread = size - self._offset
        if unread > LOG_KEPT:
            self._skip(unread - LOG_KEPT)
        self._offset = end - min(unread, LOG_KEPT)

    def remarks(self, stream: str) -> Iterator[str]:
        """Yield a line for each loss of output."""
        if self._skipped:
            yield (
                f"{stream} grew faster than it could be read: {self._skipped / 1e6:.1f} MB were skipped, and with them"
                " the metrics that they had"
            )
        if self._removed:
            yield f"{stream}.log was too long: {self._removed / 1e6:.0f} MB were removed from its middle"


_MEMORY_ERRORS = (
    *map(re.escape, OUT_OF_MEMORY_TEXTS),
    r"(^|\s)MemoryError\b",
    r"\bOutOfMemoryError\b",
    r"\bstd::bad_alloc\b",
)
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?([\w.]*(?:Error|Exception|Exit|Interrupt)\b.*|\S*python[\d.]*: .*)")
"""An exception, or what Python itself says of a file or module that it does not find."""
_SIGNALS = {int(number): number.name for number in signal.Signals}
_NOT_THE_CAUSE = re.compile(r"ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException")
_KILLED_RANK = re.compile(
    r"failed \(exitcode: -(?P<torchrun>\d+)\) local_rank: (?P<torchrun_rank>\d+)"
    r"|process (?P<spawn_rank>\d+) terminated with signal (?P<spawn>SIG\w+)"
    r"|process rank (?P<mpirun_rank>\d+)\b.* exited on signal (?P<mpirun>\d+)"
    r"|task (?P<srun_rank>\d+): (?P<srun>Killed|Segmentation fault|Bus error)"
)
"""How torchrun and accelerate, torch.multiprocessing, mpirun and srun tell of a rank that a signal has killed."""

_SENT_BY_LAUNCHERS = ("SIGTERM", "SIGINT", "SIGABRT")
"""Signals that also end the ranks beside the one that failed: they are not the cause."""

_SHELL_NAMES = {"Killed": "SIGKILL", "Segmentation fault": "SIGSEGV", "Bus error": "SIGBUS"}


class CommandError(Exception):
    """The command failed, for a reason that is neither memory nor divergence."""


class FailureCause:
    """The cause of a command's failure, found in its output and exit status."""

    def __init__(self, oom_patterns: Iterable[str], diverged_patterns: Iterable[str]) -> None:
        self._patterns = {
            "memory": [re.compile(pattern) for pattern in (*_MEMORY_ERRORS, *oom_patterns)],
            "diverged": [re.compile(pattern) for pattern in diverged_patterns],
            "port": [PORT_IN_USE],
        }
        self._lines: dict[str, str] = {}  # the first line of each kind
        self._error_line = self._last_line = self._killed = ""

    def read(self, stream: str, line: str) -> None:
        """Take a line of output; the first line of each kind counts."""
        text = line[:SEARCHED].strip()
        if not text:
            return
        for kind, patterns in self._patterns.items():
            if kind not in self._lines and any(pattern.search(text) for pattern in patterns):
                self._lines[kind] = text
        self._killed = self._killed or _killed_rank(text)
        if stream == "stderr":
            self._last_line = text
            match = _ERROR.match(text)
            if match and not _NOT_THE_CAUSE.search(text):
                # Another rank may print sooner that it has lost the connection to the one that fails.
                explains = bool(CONNECTION_ERROR.search(self._error_line)) and not CONNECTION_ERROR.search(text)
                self._error_line = match[1] if explains or not self._error_line else self._error_line

    def check(self, exit_code: int, ok_exit_codes: Sequence[int]) -> None:
        """Raise MemoryError, DivergedError, PortInUseError or CommandError unless the command succeeded."""
        # A script that catches its own NaN ends with status 0.
        if "diverged" in self._lines:
            raise DivergedError(self._lines["diverged"])
        if exit_code in ok_exit_codes:
            return
        # A command that reports a lack of memory may still succeed, and its last error be a broken connection.
        if "memory" in self._lines:
            raise MemoryError(self._lines["memory"])
        if "port" in self._lines:
            hint = "a port that the command chose is in use; {master_port} is a free one"
            raise PortInUseError(f"{hint}: {self._lines['port']}")
        # The errors of the other ranks are about the connection to the killed one.
        if self._killed:
            raise CommandError(self._killed)
        message = self._error_line or self._last_line
        exit_text = f"ended with status {exit_code}"
        if exit_code < 0:
            exit_text = _killed_by(_SIGNALS.get(-exit_code, f"signal {-exit_code}"))
        raise CommandError(f"the command {exit_text}" + (f": {message}" if message else ""))


def _killed_rank(text: str) -> str:
    """Return what a launcher says of a rank that a signal has killed; an empty string for any other line."""
    match = _KILLED_RANK.search(text)
    if match is None:
        return ""
    launcher = str(match.lastgroup).removesuffix("_rank")
    rank, cause = match[f"{launcher}_rank"], match[launcher]
    name = _SIGNALS.get(int(cause), f"signal {cause}") if cause.isdigit() else _SHELL_NAMES.get(cause, cause)
    return "" if name in _SENT_BY_LAUNCHERS else f"rank {rank} of the command {_killed_by(name)}"


def _killed_by(name: str) -> str:
    hint = ", as by the kernel's out-of-memory killer" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
