"""One run of a command: start it, follow it, and stop it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trainables.command.file_tail import FileTail
from trainables.command.process_tree import CpuTimes, Tree
from trainables.context import TrialTimeoutError

POLL_S = 0.1  # interval at which output, exit and stop requests are checked


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
    streams = {"stdout": FileTail(command.stdout), "stderr": FileTail(command.stderr)}
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
    tree: Tree, command: Command, listener: CommandListener, cpu: CpuTimes, streams: Mapping[str, FileTail]
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
