"""A disk on which one operation fails, or all from one on: it counts every call on files below one folder."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OPERATIONS = ("open", "write", "fsync", "replace", "mkdir", "ftruncate", "unlink", "link")
SHORT = "short write"
FAULTS = (errno.EIO, errno.ENOSPC, errno.EROFS, SHORT)


class FailingDisk:
    """A disk with a fault: `fault` is an error number, or SHORT; `at` counts from 1, None never fails."""

    def __init__(self, folder: Path, fault: int | str, at: int | None, *, for_good: bool) -> None:
        self._folder = str(folder)
        self._fault, self._at, self._for_good = fault, at, for_good
        self._files: set[int] = set()
        self.count = 0
        self.failed = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *rest: Any, **named: Any) -> Any:
            if not self._is_here(target) or self._only_reads(name, rest):
                return real(target, *rest, **named)
            self.count += 1
            if self._fails_now():
                if self._fault != SHORT:
                    self.failed += 1
                    raise OSError(self._fault, os.strerror(int(self._fault)), target if name != "write" else None)
                if name == "write":  # as much as half of it, once, and then nothing any more
                    self.failed += 1
                    return real(target, bytes(rest[0])[: len(rest[0]) // 2]) if self.failed == 1 else 0
            result = real(target, *rest, **named)
            if name == "open":
                self._files.add(result)
            return result

        return call

    def _fails_now(self) -> bool:
        return self._at is not None and (self.count >= self._at if self._for_good else self.count == self._at)

    def _is_here(self, target: Any) -> bool:
        return target in self._files if isinstance(target, int) else str(target).startswith(self._folder)

    def _only_reads(self, name: str, rest: tuple[Any, ...]) -> bool:
        return name == "open" and bool(rest) and not rest[0] & (os.O_WRONLY | os.O_RDWR)
