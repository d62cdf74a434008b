import subprocess
import sys

import pytest

CODE = """
from orchestrator.backends.on_ray import cluster
from orchestrator.backends.backend import NotStartedError

try:
    cluster._start({"num_cpus": -1, "include_dashboard": False})
except NotStartedError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_ray_that_does_not_start_is_told_in_a_line() -> None:
    """In a process of its own, which ends what Ray has left of its start."""
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True)
    (told,) = ended.stdout.splitlines()
    assert told.startswith("Ray could not be started here: ")
