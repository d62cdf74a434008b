"""The code that travels to the nodes of a cluster that runs already: nothing of it has to be installed there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CODE = Path(__file__).parent.parent
"""The folder that the three rooms are imported from."""

_ROOMS = ("sweeps", "trainables", "orchestrator")
_NOT_CODE = {"data", "results", "outputs", "multirun"}


def stage(target: Path, here: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Copy what travels into `target`; returns the runtime_env that ships it.

    That is the three rooms and, from the user's folder `here`, the Python files: no hidden file or folder, no virtual
    environment, no data and no results. A submitted job has its own folder on the nodes already.
    """
    submitted = "RAY_JOB_CONFIG_JSON_ENV_VAR" in environment
    for file in () if submitted else python_files(here):
        copy = target / file.relative_to(here)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    for room in _ROOMS:
        shutil.copytree(CODE / room, target / room, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return {"py_modules": [str(target / room) for room in _ROOMS]} if submitted else {"working_dir": str(target)}


def python_files(folder: Path) -> Iterator[Path]:
    """The Python files in and below a folder, as far as they are its own code."""
    for parent, folders, files in os.walk(folder):
        inside = Path(parent)
        folders[:] = [name for name in folders if not _is_foreign(inside / name, top=inside == folder)]
        yield from (inside / name for name in files if name.endswith(".py") and not name.startswith("."))


def _is_foreign(folder: Path, *, top: bool) -> bool:
    return (
        folder.name.startswith((".", "__pycache__"))
        or (top and folder.name in _NOT_CODE)
        or (folder / "pyvenv.cfg").exists()
    )
