"""Content hashes of the files that a trial depends on, and imports that would fail; the code is read, never run."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from sweeps.errors import ConfigError
from sweeps.identity import ID_DIGITS, digest

OWN_PACKAGES = ("orchestrator", "studies", "sweeps", "trainables")  # this project's own packages

_NOT_CODE = {"data", "results", "outputs", "multirun"}

_CHANGES_IMPORTS = ("sys.path", "sys.meta_path", "sys.modules", "site.addsitedir")
"""A module that mentions one of these names may import modules that are not found without running it."""


def python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files in and below a folder, without environments, results and hidden folders."""
    # `os.walk` and not `rglob`, which would descend into environments with their 10,000s of files.
    for parent, folders, files in os.walk(folder):
        inside = Path(parent)
        # In place: `os.walk` then leaves the others out.
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and not (inside == folder and name in _NOT_CODE)
            and not (inside / name / "pyvenv.cfg").exists()
        ]
        yield from (inside / name for name in files if name.endswith(".py") and not name.startswith("."))


def is_installed(path: Path) -> bool:
    """Return whether the path lies in an installed package."""
    return bool({"site-packages", "dist-packages"} & set(path.parts))


def import_errors(names: Iterable[str], *, installed: bool) -> Iterator[str]:
    """Yield a line for each syntax error in code as `package.module:name`, and each missing module if `installed`."""
    seen: set[Path] = set()
    for name in sorted(names):
        yield from _errors_in_module(name.partition(":")[0], seen, installed)


def _errors_in_module(module: str, seen: set[Path], installed: bool) -> Iterator[str]:
    """Yield errors in this module, the packages above it, and all of the user's modules that it imports."""
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names or parts[0] in OWN_PACKAGES:
        return
    for length in range(1, len(parts) + 1):
        file = source_file(".".join(parts[:length]))
        if file is None or is_installed(file) or file in seen:
            continue
        seen.add(file)
        try:
            tree, changes_imports = parsed_module(file)
        except SyntaxError as error:
            yield f"{file}, line {error.lineno}: {type(error).__name__}: {error.msg}"
            continue
        package = parts[: length if file.name == "__init__.py" else length - 1]
        # Code that changes how modules are found may find what is not found here.
        must_exist = installed and not changes_imports
        # An import inside `try` or a function may be allowed to fail.
        for line, name in ((node.lineno, name) for node in tree.body for name in _imported(node, package)):
            if must_exist and spec_of(name) is None:
                yield f"{file}, line {line}: there is no module {name.partition('.')[0]!r} in this environment"
            else:
                yield from _errors_in_module(name, seen, must_exist)


def _imported(node: ast.stmt, package: list[str]) -> Iterator[str]:
    """Yield the absolute names that a statement imports; a name imported from a module may be a module itself."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
        if origin := origin_of(node, package):
            yield from dict.fromkeys([origin, *(f"{origin}.{alias.name}" for alias in node.names)])


def origin_of(node: ast.ImportFrom, package: Sequence[str]) -> str:
    """Return the absolute name of the module that a statement inside `package` imports from."""
    above = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def parsed_module(file: Path) -> tuple[ast.Module, bool]:
    """Return the parsed module, and whether it changes how modules are found. Raises SyntaxError."""
    # The time is part of the key, since a file may be edited while a notebook runs.
    return _parsed(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _parsed(file: Path, changed_ns: int) -> tuple[ast.Module, bool]:
    text = file.read_bytes()
    return ast.parse(text, str(file)), any(word.encode() in text for word in _CHANGES_IMPORTS)


def spec_of(name: str) -> ModuleSpec | None:
    """Return the spec of a name's top-level package; None if it cannot be found."""
    top = name.partition(".")[0]
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # a loaded module without a spec, such as __main__
        return ModuleSpec(top, None)


def source_file(module: str) -> Path | None:
    """Return the Python file of a module; None if there is none. Nothing is imported."""
    rest = module.split(".")[1:]
    spec = spec_of(module)
    if spec is None:
        return None
    roots = [Path(root) for root in spec.submodule_search_locations or ()]
    places = [root.joinpath(*rest) for root in roots] or ([Path(spec.origin)] if spec.origin and not rest else [])
    candidates = [file for place in places for file in (place, place.with_suffix(".py"), place / "__init__.py")]
    return next((file for file in candidates if file.suffix == ".py" and file.is_file()), None)


MOST_FILES = 5000
"""A folder with more Python files than this is not one project; then only the files that the command names count."""


def source_dir(trainable: Mapping[str, Any]) -> Path:
    """Return the folder of a command's files: the current directory, unless the config says otherwise."""
    return absolute(trainable["source_dir"] or ".")


def absolute(path: str) -> Path:
    """Return an absolute path; `~` is the user's home."""
    return Path(path).expanduser().absolute()


class Versions:
    """Hashes of sources and data at one moment. Each is computed once and kept."""

    def __init__(self, outputs: Mapping[str, str] | None = None) -> None:
        """`outputs`: the hashes of files that commands write, from before they did (see `History.outputs`)."""
        self._outputs = outputs or {}
        self.source = functools.cache(self._source)
        self.model = functools.cache(_model_version)
        self._sources = functools.cache(_sources_version)
        self._data: dict[str, str] = {}

    def _source(self, dotted_path: str) -> str:
        """Return a hash of the Python sources of the package in `package.module:function`. Raises ValueError."""
        top = dotted_path.partition(":")[0].partition(".")[0]
        # Only the top-level package: finding a submodule would import the packages above it.
        spec = importlib.util.find_spec(top)
        if spec is None or (spec.origin is None and not spec.submodule_search_locations):
            raise ValueError(f"trainable {dotted_path!r}: no package or module {top!r} is importable")
        _check_name(dotted_path, spec)
        # The whole package, because it is not known which of its modules a function uses.
        own = self._sources(spec.origin, tuple(spec.submodule_search_locations or ()))
        # The studies train with the loop, the clock and the process groups of the product's trainables.
        return digest([own, self.source("trainables.rank:run")]) if top == "studies" else own

    def command(self, argv: str | Sequence[Any], folder: Path) -> dict[str, Any]:
        """Return the hash of a command's Python files, and that of each of its `named_files`."""
        words = _words_of(argv, folder)
        known = {name: path for name, path in words.items() if name not in self._outputs and os.path.exists(path)}
        now = {name: hash_files([(Path(name), path)]) for name, path in known.items() if _is_other_file(path)}
        # A file that a trial writes and the next one reads would otherwise change the identity of both.
        before = {name: self._outputs[name] for name in words if self._outputs.get(name)}
        named = now | before
        return {"argv": _code_version(known.values(), folder)} | ({"files": named} if named else {})

    def data(self, data: Mapping[str, Any]) -> str:
        """Return `data_version`, computed once."""
        key = str([data.get(name) for name in ("name", "path", "pattern", "tokenizer")])
        if key not in self._data:
            self._data[key] = data_version(data)
        return self._data[key]


def _model_version(path: str) -> str:
    """Return a hash of the contents of a model's folder; `absent` if this machine has none."""
    folder = Path(path).expanduser()
    inside = [(file.relative_to(folder), file) for file in sorted(folder.rglob("*")) if file.is_file()]
    own = [(name, file) for name, file in inside if not any(part.startswith(".") for part in name.parts)]
    return hash_files(own) if own else "absent"


def _sources_version(origin: str | None, folders: tuple[str, ...]) -> str:
    """Return the version of the package in these folders; without any, of the module in the file `origin`."""
    if folders:
        roots = [Path(folder) for folder in folders]
        sources = [(path.relative_to(root), path) for root in roots for path in sorted(root.rglob("*.py"))]
        # A user's sources are few and are edited; an installed package is large, and only changes as a whole.
        if not is_installed(roots[0]):
            return hash_files(sources)
        return _hash_outline(sources)
    assert origin is not None
    # A script may import the files beside it, so they count. The files beside an installed module do not.
    module = Path(origin)
    siblings = [module] if is_installed(module) else sorted(module.parent.glob("*.py"))
    return hash_files((path.relative_to(module.parent), path) for path in siblings)


def _check_name(dotted_path: str, spec: ModuleSpec) -> None:
    """Raise ValueError if the module is missing or does not contain the name; the module is read, not imported."""
    module, _, name = dotted_path.partition(":")
    file = source_file(module)
    if file is None:
        if spec.submodule_search_locations:
            raise ValueError(f"{dotted_path!r}: there is no module {module!r}")
        return
    text = file.read_text(errors="replace")
    # The name's presence anywhere is enough: how it is defined cannot be told without running the module.
    if "import *" not in text and not re.search(rf"\b{re.escape(name)}\b", text):
        raise ValueError(f"{dotted_path!r}: {file} has no {name!r}")


def data_version(data: Mapping[str, Any]) -> str:
    """Return a hash of the data files that the config names, `absent` if they are; without files, the set's name."""
    files: Sequence[Path] | None = pkgutil.resolve_name("trainables.tokens:files_of")(data)
    if files is not None:
        return hash_files((Path(path.name), path) for path in files) if files else "absent"
    if data.get("path"):
        path = Path(data["path"]).expanduser()
        if path.is_dir():  # many images
            images = [file for file in path.rglob("*") if file.is_file()]
            return _hash_outline(sorted((file.relative_to(path), file) for file in images))
        return hash_files([(Path(), path)]) if path.is_file() else "absent"
    return str(data.get("name", ""))


def _hash_outline(named: Iterable[tuple[Path, Path]]) -> str:
    """Return a hash of the files' names and sizes, which is enough for an installed package or a folder of images."""
    outline = "".join(f"{name.as_posix()}\0{path.stat().st_size}\n" for name, path in named)
    return hashlib.sha256(outline.encode()).hexdigest()[:ID_DIGITS]


def hash_files(named: Iterable[tuple[Path, Path]]) -> str:
    """Return a hash of the files' contents together with their given names. Raises ConfigError for unreadable ones."""
    whole = hashlib.sha256()
    sha256 = pkgutil.resolve_name("trainables.file_facts:sha256")  # knows large files from earlier commands
    for name, path in named:
        try:
            part = sha256(path)
        except OSError as error:
            raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from error
        whole.update(f"{name.as_posix()}\0{part}\n".encode())
    return whole.hexdigest()[:ID_DIGITS]


def named_files(argv: str | Sequence[Any], folder: Path) -> dict[str, Path]:
    """Return the files of `folder` that the command names, by name, except Python code: configs, logs, programs."""
    return {name: path for name, path in _words_of(argv, folder).items() if _is_other_file(path)}


def _is_other_file(path: Path) -> bool:
    return os.path.isfile(path) and path.suffix != ".py"  # False for a path that is too long


def _code_version(named: Iterable[Path], folder: Path) -> str:
    """Return a hash of the Python files among these, and of those beside and below them."""
    files: dict[str, Path] = {}
    for path in named:
        code = list(python_files(path.parent if path.is_file() else path))
        named_code = [path] if path.suffix == ".py" else []
        for file in [*named_code, *(code if len(code) <= MOST_FILES else [])]:
            files[_name_of(file, folder)] = file
    return hash_files((Path(name), files[name]) for name in sorted(files))


def _name_of(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name


def _words_of(argv: str | Sequence[Any], folder: Path) -> dict[str, Path]:
    """Return the words of a command as paths, by their name in the identity, and the package or module after `-m`."""
    words = re.split(r"[\s'\"]+", argv) if isinstance(argv, str) else [str(word) for word in argv]
    paths: list[Path] = []
    after = ""
    for whole in words:
        # Options may name files as well: --config=base.yaml.
        word = whole.partition("=")[2] if whole.startswith("-") else whole
        top = folder / word.partition(".")[0]
        if after == "-m" and (top.is_dir() or top.with_suffix(".py").is_file()):
            paths.append(top if top.is_dir() else top.with_suffix(".py"))
        # A placeholder differs in each trial. A folder may be one of data or outputs, with any number of files.
        elif word and "{" not in word and not os.path.isdir(folder / word):
            paths.append(folder / word)
        after = whole
    return {_name_of(path, folder): path for path in paths}
