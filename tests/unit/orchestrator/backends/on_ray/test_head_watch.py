"""A head that is gone ends the driver, and leaves its terminal as it was."""

import os
import pty
import subprocess
import sys

PROGRAM = """
import time
from types import SimpleNamespace
from orchestrator.backends.on_ray import head_watch
head_watch.LOOK_EVERY_S, head_watch.PATIENCE_S = 0.01, 0.1
head_watch.ray.get_runtime_context = lambda: SimpleNamespace(gcs_address="127.0.0.1:1")
with head_watch.HeadWatch():
    time.sleep(60)  # as in a call of Ray's
"""


def test_a_lost_head_ends_the_driver_and_the_cursor_comes_back() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "the head of the Ray cluster at 127.0.0.1:1 has not answered" in err
    assert "\x1b[?25h" in os.read(ours, 1000).decode()
    os.close(ours)
