import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from orchestrator.run.leftover_processes import Watcher, left_over, marked, with_descendants

DRIVER = """
import os, subprocess, sys, time
from pathlib import Path
from orchestrator.run.leftover_processes import Watcher
with Watcher(Path(sys.argv[1])):
    forks = "import os, time; os.fork(); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", forks], start_new_session=True)
    print(child.pid, flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), 9)
    child.kill()
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux")


def test_killed_driver_leaves_no_process(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), "dies"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout and driver.stdin
        child = int(driver.stdout.readline())
        deadline = time.monotonic() + 60
        while len(ours := marked(f":{tmp_path}")) < 2:
            assert time.monotonic() < deadline
        assert child in {process.pid for process in ours}
        assert left_over(tmp_path) == []
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert driver.wait() == -9
    while with_descendants(ours):
        assert time.monotonic() < deadline
    assert left_over(tmp_path) == []


def test_process_of_a_dead_driver_is_found(tmp_path):
    mark = {"ORCHESTRATOR_DRIVER": f"1.999999999999:{tmp_path}"}
    orphan = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=mark)
    deadline = time.monotonic() + 60
    while left_over(tmp_path) != [orphan.pid]:
        assert time.monotonic() < deadline
    assert left_over(tmp_path.parent) == []
    orphan.communicate(b"\n")


def test_ending_driver_kills_abandoned_descendants_only(tmp_path):
    forks = "import os, time; child = os.fork(); child and os.write(1, b'%d\\n' % child); time.sleep(60)"
    with Watcher(tmp_path):
        parent = subprocess.Popen([sys.executable, "-c", forks], stdout=subprocess.PIPE, text=True)
        assert parent.stdout
        orphan = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        spared = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert psutil.pid_exists(orphan)
    assert orphan not in {
        process.pid for process in psutil.process_iter(["status"]) if process.info["status"] != "zombie"
    }
    assert spared.poll() is None
    spared.communicate(b"\n")
    parent.stdout.close()


def test_watcher_ends_with_its_driver(tmp_path):
    with Watcher(tmp_path) as watcher:
        process = watcher._watcher
    assert process is None or process.returncode is not None


HELD = """
import sys, time
from pathlib import Path
from orchestrator.run.interrupt import Interrupt
from orchestrator.run.leftover_processes import Watcher
with Interrupt() as interrupt, Watcher(Path(sys.argv[1]), interrupt.received):
    print("began", flush=True)
    time.sleep(float(sys.argv[2]))
    sum(range(10**12))  # for hours, inside the interpreter: no other thread runs
"""


@pytest.mark.slow
@pytest.mark.parametrize("still_reads_s", ["0", "3"])
def test_driver_that_cannot_handle_a_signal_is_killed(tmp_path, still_reads_s):
    driver = subprocess.Popen([sys.executable, "-c", HELD, str(tmp_path), still_reads_s], stdout=subprocess.PIPE)
    assert driver.stdout and driver.stdout.readline() == b"began\n"
    with driver.stdout:
        time.sleep(1.5)
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(timeout=120) == -signal.SIGKILL
