"""The content version of what a command line runs: the files it names, and the Python code beside them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config.source_files import python_files
from orchestrator.config.versions import hash_files

MOST_FILES = 5000
"""Beyond as many Python files a folder is no project's own, and only the named files count."""


def command_version(argv: str | Sequence[Any], folder: Path) -> str:
    """A hash of every file of `folder` that a word of the command names, and of the Python files beside and below it.

    `-m package.module` names the package. A README beside them, and what the command writes, change nothing.
    """
    files: dict[str, Path] = {}
    for named in _named(argv, folder):
        code = list(python_files(named.parent if named.is_file() else named))
        for file in [named] * named.is_file() + code * (len(code) <= MOST_FILES):
            files[file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name] = file
    return hash_files((Path(name), files[name]) for name in sorted(files))


def _named(argv: str | Sequence[Any], folder: Path) -> Iterator[Path]:
    words = re.split(r"[\s'\"]+", argv) if isinstance(argv, str) else [str(word) for word in argv]
    after = ""
    for word in words:
        top = folder / word.partition(".")[0]
        if after == "-m" and (top.is_dir() or top.with_suffix(".py").is_file()):
            yield top if top.is_dir() else top.with_suffix(".py")
        elif word and "{" not in word and os.path.isfile(folder / word):  # false also for a name that is too long
            yield folder / word
        after = word
