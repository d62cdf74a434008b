"""Which Python files are somebody's own: of a project's folder those of its code, and not what is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

SHIPPED = ("orchestrator", "sweeps", "trainables")
"""This project's own packages."""

_NOT_CODE = {"data", "results", "outputs", "multirun"}


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


def is_installed(path: Path) -> bool:
    """Whether it was put there by an installer."""
    return bool({"site-packages", "dist-packages"} & set(path.parts))
