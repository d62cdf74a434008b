"""Content hashes of what a trial depends on besides its config: source code, the command's files, data files."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from orchestrator.config.own_code import is_installed, python_files
from sweeps.identity import LENGTH

MOST_FILES = 5000
"""A folder with more Python files than this is not one project: only the files named in the command count."""


class Versions:
    """Versions at one moment; each is computed once, however many trials depend on it."""

    def __init__(self) -> None:
        self.source = functools.cache(self._source)
        self._sources = functools.cache(_sources_version)
        self._files: dict[tuple[Any, Any], str] = {}

    def _source(self, dotted_path: str) -> str:
        """A hash of the Python sources of the package that contains `package.module:function`, or of a module's folder.

        Based on content rather than the commit, so that editing a README reruns nothing. Raises ValueError if there is
        no such package.
        """
        top = dotted_path.partition(":")[0].partition(".")[0]
        spec = importlib.util.find_spec(top)
        if spec is None or (spec.origin is None and not spec.submodule_search_locations):
            raise ValueError(f"trainable {dotted_path!r}: no package or module {top!r} is importable")
        _check_name(dotted_path, spec)
        return self._sources(spec.origin, tuple(spec.submodule_search_locations or ()))

    def data(self, data: Mapping[str, Any]) -> str:
        """See `data_version`."""
        key = (data.get("name"), data.get("path"))
        return self._files[key] if key in self._files else self._files.setdefault(key, data_version(data))


def _sources_version(origin: str | None, folders: tuple[str, ...]) -> str:
    """The version of the package in these folders; without any, of the module in the file `origin`."""
    if folders:
        roots = [Path(folder) for folder in folders]
        sources = [(path.relative_to(root), path) for root in roots for path in sorted(root.rglob("*.py"))]
        return _outline(sources) if is_installed(roots[0]) else hash_files(sources)
    assert origin is not None
    # A script's neighbours belong to it, since it may import them; those of an installed module do not.
    module = Path(origin)
    siblings = [module] if is_installed(module) else sorted(module.parent.glob("*.py"))
    return hash_files((path.relative_to(module.parent), path) for path in siblings)


def _check_name(dotted_path: str, spec: ModuleSpec) -> None:
    """Raise ValueError if the module is missing or never mentions the name; it is read, not imported."""
    module, _, name = dotted_path.partition(":")
    file = Path(spec.origin) if spec.origin else None
    for root in spec.submodule_search_locations or ():
        inside = Path(root).joinpath(*module.split(".")[1:])
        file = next((each for each in (inside.with_suffix(".py"), inside / "__init__.py") if each.is_file()), None)
    if file is None or file.suffix != ".py":
        if spec.submodule_search_locations:
            raise ValueError(f"{dotted_path!r}: there is no module {module!r}")
        return
    text = file.read_text(errors="replace")
    if "import *" not in text and not re.search(rf"\b{re.escape(name)}\b", text):
        raise ValueError(f"{dotted_path!r}: {file} has no {name!r}")


def data_version(data: Mapping[str, Any]) -> str:
    """A hash of the data files that the config names, so that a changed file under the same name counts as other data.

    Data sets known by name are identified by it. A file that this machine does not have is `absent`: the trial
    will say so.
    """
    if data.get("path"):
        path = Path(data["path"]).expanduser()
        return hash_files([(Path(), path)]) if path.is_file() else "absent"
    return str(data.get("name", ""))


def _outline(named: Iterable[tuple[Path, Path]]) -> str:
    """A hash of names and sizes: enough for an installed package, which is not edited and may have many files."""
    outline = "".join(f"{name.as_posix()}\0{path.stat().st_size}\n" for name, path in named)
    return hashlib.sha256(outline.encode()).hexdigest()[:LENGTH]


def hash_files(named: Iterable[tuple[Path, Path]]) -> str:
    """A hash of the files' contents together with their given names."""
    whole = hashlib.sha256()
    for name, path in named:
        with path.open("rb") as file:
            part = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{name.as_posix()}\0{part}\n".encode())
    return whole.hexdigest()[:LENGTH]


def command_version(argv: str | Sequence[Any], folder: Path) -> str:
    """A hash of every file of `folder` that a word of the command names, and of the Python files beside and below it.

    `-m package.module` names the package. A README beside them, or the command's output, does not change the hash.
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
        elif word and "{" not in word and os.path.isfile(folder / word):  # False for a name too long
            yield folder / word
        after = word
