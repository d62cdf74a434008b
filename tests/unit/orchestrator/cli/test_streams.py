import subprocess
import sys

import pytest

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
def test_closed_reader_does_not_end_the_program(name: str) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", LONG, name], text=True, **pipes)
    assert process.stdin and process.stdout and process.stderr
    reader, other = (process.stdout, process.stderr) if name == "stdout" else (process.stderr, process.stdout)
    assert reader.readline() == "first\n"
    reader.close()
    process.stdin.close()
    assert other.read() == "" and process.wait(30) == 3
    other.close()


def test_long_output_arrives_complete() -> None:
    program = "from orchestrator.cli.streams import outlast_readers as o; o(); print('\u2713' * 70_000)"
    told = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", program], capture_output=True, text=True, encoding="utf8"
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, "\u2713" * 70_000 + "\n", "")
