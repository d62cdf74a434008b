"""The Python files of somebody's own project, without what else lies in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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
