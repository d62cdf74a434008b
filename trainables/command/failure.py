"""The cause of a command's failure, found in its output and its exit status."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

from sweeps.rank_exit import CONNECTION_ERROR
from trainables.command.file_tail import SEARCHED
from trainables.context import DeviceMemoryError, DivergedError, PortInUseError
from trainables.rank import DEVICE_MEMORY_TEXTS, HOST_MEMORY_TEXT, PORT_IN_USE

_DEVICE_MEMORY = (*map(re.escape, DEVICE_MEMORY_TEXTS), r"\btorch(\.cuda)?\.OutOfMemoryError\b")
_HOST_MEMORY = (re.escape(HOST_MEMORY_TEXT), r"\b(OutOf)?MemoryError\b", r"\bstd::bad_alloc\b")
_ERROR = re.compile(
    r"^(?:\[rank\d+\]:\s*)?"
    r"([\w.]*(?:Error|Exception|Exit|Interrupt)\b.*|\S*python[\d.]*: .*|\S+: error: .*)"
)
"""An exception, what Python itself says of a file or module that it does not find, or what argparse says of options."""
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
            "device memory": [re.compile(pattern) for pattern in (*_DEVICE_MEMORY, *oom_patterns)],
            "host memory": [re.compile(pattern) for pattern in _HOST_MEMORY],
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
        """Raise DivergedError, DeviceMemoryError, MemoryError, PortInUseError or CommandError unless it succeeded."""
        # A script that catches its own NaN ends with status 0.
        if "diverged" in self._lines:
            raise DivergedError(self._lines["diverged"])
        if exit_code in ok_exit_codes:
            return
        # A command that reports a lack of memory may still succeed, and its last error be a broken connection.
        for kind, line in self._lines.items():  # the first one is the cause
            if kind in ("device memory", "host memory"):
                raise (DeviceMemoryError if kind == "device memory" else MemoryError)(line)
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
