"""Test a sweep on a narrow terminal."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress

import pytest

from tests.drivers.place import SMALL, Place, wait_for

COLUMNS = 60
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"


class Screen:
    """The output that arrives at a terminal."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (40, COLUMNS))
        self._said = b""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        while told := self._read():
            self._said += told

    def _read(self) -> bytes:
        try:
            return os.read(self._ours, 4096)
        except OSError:  # what Linux says once nobody has the other side open
            return b""

    @property
    def text(self) -> str:
        return self._said.decode(errors="replace")

    def whole(self) -> str:
        """Return the output once all writers have ended."""
        self._listener.join(timeout=60)
        return self.text


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_restores_the_terminal(tmp_path, times):
    place, screen = Place(tmp_path), Screen()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *place.command(("sweep=traced", *SMALL, "report.html=false"))],
        cwd=place.folder,
        env=place.environment({"HOLD_AFTER": "0", "TERM": "xterm", "COLUMNS": str(COLUMNS)}),
        stdin=screen.theirs,
        stdout=screen.theirs,
        stderr=screen.theirs,
        text=True,
    )
    os.close(screen.theirs)
    wait_for(lambda: "1 running" in screen.text, process)
    for number in range(times):
        process.send_signal(signal.SIGINT)
        if number + 1 < times:
            wait_for(lambda: "interrupted" in screen.text, process)
    assert process.wait(timeout=60) == 130
    text = screen.whole()
    assert text.rindex(SHOWN) > text.rindex(HIDDEN)
    said = text.index("interrupted: stopping the running trials")
    assert max(len(line) for line in re.split(r"[\r\n]+", text[said : said + 90])[:2]) <= COLUMNS
    assert times == 2 or "4 planned trials" in text


@pytest.mark.parametrize("backend", ["inprocess", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_closed_terminal_ends_the_sweep_cleanly(tmp_path, backend):
    place = Place(tmp_path)
    ours, theirs = pty.openpty()
    options = (f"backend={backend}", "cluster.dashboard=false", "report.html=false")
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *place.command(("sweep=traced", *SMALL, *options))],
        cwd=place.folder,
        env=place.environment({"HOLD_AFTER": "1", "TERM": "xterm"}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # the kernel tells it that the terminal is closed
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    while len(place.ran()) < 2:
        assert process.poll() is None
        with suppress(BlockingIOError):
            os.read(ours, 4096)
        time.sleep(0.02)
    os.close(ours)
    os.killpg(process.pid, signal.SIGHUP)  # as a shell does with all that it has started
    assert process.wait(timeout=60) == 129
    kinds = [record["kind"] for record in place.journal()]
    assert kinds.count("finished") == 1 and kinds[-1] == "ended"
    assert (place.results / "tables" / "summary.csv").exists()
