"""The code shipped to the nodes of an existing cluster, so that none of it has to be installed there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.config.own_code import python_files

CODE = Path(__file__).parents[3]
"""The folder that contains the three packages."""

_ROOMS = ("sweeps", "trainables", "orchestrator")


def stage(target: Path, here: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Copy the code into `target`; returns the runtime_env that ships it.

    It consists of the three packages and the Python files of the user's folder `here`, without hidden files, virtual
    environments, data and results. A submitted job already has its own folder on the nodes.
    """
    submitted = "RAY_JOB_CONFIG_JSON_ENV_VAR" in environment
    for file in () if submitted else python_files(here):
        copy = target / file.relative_to(here)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    for room in _ROOMS:
        shutil.copytree(CODE / room, target / room, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return {"py_modules": [str(target / room) for room in _ROOMS]} if submitted else {"working_dir": str(target)}
