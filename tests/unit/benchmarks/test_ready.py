"""Benchmarks for GPU hosts say what is missing there at once: their minutes are few."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import ready

ROOT = Path(__file__).parents[3]
WITHOUT = """
import runpy, sys
sys.modules[sys.argv[1]] = None
sys.argv[:] = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_everything_that_the_project_asks_for_is_looked_for() -> None:
    assert {"hydra-core", "ray", "orjson", "torch", "scikit-learn"} <= set(ready.dependencies())
    ready.require()


@pytest.mark.parametrize(
    ("script", "module"),
    [
        ("gpu_session", "psutil"),
        ("gpu_throughput", "torchvision"),
        ("published_session", "orjson"),
        ("own_code_on_gpus", "orjson"),
        ("warm_vs_fresh", "ray"),
        ("timing_gate", "scipy"),
        ("telemetry_cost", "pynvml"),
        ("warm_slices", "sklearn"),
        ("why_not_linear", "sklearn"),
    ],
)
def test_what_is_missing_is_told_at_once_in_one_line(script: str, module: str) -> None:
    command = [sys.executable, "-c", WITHOUT, module, str(ROOT / f"tests/benchmarks/{script}.py"), "--help"]
    ended = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60)
    wanted = {"sklearn": "scikit-learn", "pynvml": "nvidia-ml-py"}.get(module, module)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"not installed here, and needed: {wanted}\n"
