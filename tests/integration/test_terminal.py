"""A sweep on a terminal of its own, narrow as some are."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading

import pytest

from tests.drivers.place import SMALL, Place, wait_for

COLUMNS = 60
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"


class Screen:
    """What arrives at a terminal, as it comes."""

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
        """Once all who wrote to it have ended."""
        self._listener.join(timeout=60)
        return self.text


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_a_terminal_as_it_was(tmp_path, times):
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
    assert times == 2 or "4 planned trials have not run" in text
