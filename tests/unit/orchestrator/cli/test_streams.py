import os
import subprocess
import sys

import pytest

from tests.drivers.forked import ROOT

LONG = """
import sys
from orchestrator.cli.streams import outlast_readers
outlast_readers()
out = getattr(sys, sys.argv[1])
print("first", file=out, flush=True)
sys.stdin.readline()
for number in range(100_000):
    print(number, file=out)
print("further", file=out, flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_closed_reader_does_not_end_the_program(name):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", LONG, name], text=True, **pipes)
    assert process.stdin and process.stdout and process.stderr
    reader, other = (process.stdout, process.stderr) if name == "stdout" else (process.stderr, process.stdout)
    assert reader.readline() == "first\n"
    reader.close()
    process.stdin.close()
    assert other.read() == "" and process.wait(30) == 3
    other.close()


FULL = """
import sys
from orchestrator.cli.streams import has_lost_output, lasting_stdout, outlast_readers
if sys.argv[1] == "program":
    with lasting_stdout():
        print("lost")
        print("lost")
        assert has_lost_output()
else:
    outlast_readers()
    print("lost")
    assert has_lost_output()
sys.exit(3)
"""


@pytest.mark.parametrize("who", ["command", "program"])
def test_full_disk_does_not_end_the_program(who):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", FULL, who], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and done.stderr.count("No space left on device") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "status"), [("run", 0), ("plan", 1), ("list", 1)])
def test_only_modes_that_print_their_result_fail_on_a_full_disk(tmp_path, mode, status):
    overrides = ("sweep=batch_scaling", "backend=inprocess", "trainable=noop", "report.html=false", f"mode={mode}")
    axes = ("gpus=[1]", "device_batch_size=[8]", "lr_rule=[none]")
    grid = [] if mode == "list" else [f"sweep.axes.{axis}" for axis in axes]
    command = [sys.executable, "-m", "orchestrator", *(overrides[-1:] if mode == "list" else overrides), *grid]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == status and b"Traceback" not in done.stderr


def test_output_to_a_full_nonblocking_pipe_arrives_complete():
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    program = "from orchestrator.cli.streams import outlast_readers as o; o(); print('x' * 500_000)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=write_end, env=os.environ)
    os.close(write_end)
    with open(read_end) as reader:
        assert reader.read() == "x" * 500_000 + "\n" and process.wait(30) == 0


def test_long_output_arrives_complete():
    program = "from orchestrator.cli.streams import outlast_readers as o; o(); print('\u2713' * 70_000)"
    told = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", program], capture_output=True, text=True, encoding="utf8"
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, "\u2713" * 70_000 + "\n", "")
