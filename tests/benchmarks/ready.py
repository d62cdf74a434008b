"""Says in one line what this machine lacks, before a benchmark begins: a GPU host may have torch, and little else."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
MODULES = {"hydra-core": "hydra", "scikit-learn": "sklearn", "pyyaml": "yaml", "nvidia-ml-py": "pynvml"}
"""What is imported of a distribution of another name."""
TRAINABLES = ("torch", "torchvision", "numpy", "psutil", "filelock")
"""What a trial needs that is started without the orchestrator; the digits are scikit-learn's."""
WATCHED = (*TRAINABLES, "nvidia-ml-py", "scipy")
"""The same with telemetry beside it, and statistics of it."""


def require(*distributions: str) -> None:
    """End the process with status 2, and one line, if any of these is not installed; by default all dependencies.

    To be called between a script's imports, before those of what may be missing.
    """
    missing = [name for name in distributions or dependencies() if find_spec(MODULES.get(name, name)) is None]
    if missing:
        print(f"not installed here, and needed: {', '.join(missing)}", file=sys.stderr)
        raise SystemExit(2)


def dependencies() -> list[str]:
    """The distributions that the project cannot do without."""
    wanted = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    return [re.split(r"[^\w.-]", each)[0] for each in wanted]
