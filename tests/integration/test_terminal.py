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

import pandas as pd
import pytest

from tests.drivers.place import SMALL, Place, wait_for

COLUMNS = 60
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"


class Screen:
    """The output that arrives at a terminal."""

    def __init__(self):
        self._ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (40, COLUMNS))
        self._said = b""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        while told := self._read():
            self._said += told

    def _read(self):
        try:
            return os.read(self._ours, 4096)
        except OSError:  # what Linux says once nobody has the other side open
            return b""

    @property
    def text(self):
        return self._said.decode(errors="replace")

    def whole(self):
        """Return the output once all writers have ended."""
        self._listener.join(timeout=60)
        return self.text


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
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


HOLD = """
import json, os, pathlib, time
print(json.dumps({"epoch": 1, "loss": 0.5, "val_accuracy": 0.9, "epoch_s": 3.0}), flush=True)
if os.environ["SWEEP_SEED"] != "0":
    pathlib.Path(os.environ["BEGAN"]).touch()
    time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("load", [0, 2])
def test_ctrl_c_on_a_command_writes_the_tables(tmp_path, load):
    """`load`: busy processes for each core, from the moment at which the second trial's command runs."""
    place, screen, began = Place(tmp_path), Screen(), tmp_path / "began"
    (tmp_path / "hold.py").write_text(HOLD)
    sweep = ("sweep=batch_scaling", "trainable=command", "trainable.argv='{python} -S hold.py'", "sweep.axes.gpus=[1]")
    axes = ("sweep.axes.device_batch_size=[32]", "sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0,1,2]")
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *place.command((*sweep, *axes, "warmup_epochs=0"))],
        cwd=tmp_path,
        env=place.environment({"BEGAN": str(began), "TERM": "xterm", "COLUMNS": str(COLUMNS)}),
        stdin=screen.theirs,
        stdout=screen.theirs,
        stderr=screen.theirs,
        start_new_session=True,
    )
    os.close(screen.theirs)
    wait_for(began.exists, process)
    wait_for(lambda: "1 running, 1 waiting, 1 ok" in screen.text, process)  # while the command holds
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(load * os.cpu_count())]
    try:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        for neighbour in busy:
            neighbour.kill()
            neighbour.wait()
    summary = pd.read_csv(tmp_path / "results/batch_scaling/tables/summary.csv")
    assert summary[["n_seeds", "n_ok"]].values.tolist() == [[1, 1]]
    assert "2 planned trials" in screen.whole()


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
