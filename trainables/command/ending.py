"""Why a command failed, judged by its exit status and its output."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

from trainables.context import DivergedError
from trainables.outcome import OUT_OF_MEMORY_TEXTS

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
        last_words = self._error_line or self._last_line
        raise CommandError(f"the command {_how(exit_code)}" + (f": {last_words}" if last_words else ""))


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", as by the kernel's out-of-memory killer" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
