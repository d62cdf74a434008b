"""A sweep to be killed, and the invariants that hold whenever nothing runs."""

import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.run.leftover_processes import with_descendants
from tests.drivers.place import SMALL, Place, Started

FOUR = ("sweep=traced", *SMALL)
"""A sweep of four trials."""


class BackgroundWork:
    """A driver's processes; all end within seconds after it."""

    def __init__(self, driver: Started) -> None:
        self._driver: psutil.Process | None = None
        with suppress(psutil.NoSuchProcess):
            self._driver = psutil.Process(driver.pid)
        self._seen: set[psutil.Process] = set()

    def look(self) -> None:
        if self._driver:
            self._seen |= with_descendants({self._driver, *self._seen}) - {self._driver}

    def names(self) -> list[str]:
        """Return the programs that they run."""
        self.look()
        programs = []
        for process in self._seen:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                programs.append(Path(f"/proc/{process.pid}/cmdline").read_bytes().partition(b"\0")[0].decode())
        return programs

    def gone_after_s(self, at_most_s: float = 10.0) -> float:
        began = time.monotonic()
        while left := with_descendants(self._seen) & self._seen:
            assert time.monotonic() - began < at_most_s, left
            time.sleep(0.02)
        return time.monotonic() - began


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, *FOUR)
