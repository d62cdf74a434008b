"""The user's own code: which Python files belong to it, and whether its imports can succeed. Read, never run."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

SHIPPED = ("orchestrator", "sweeps", "trainables")
"""This project's own packages."""

_NOT_CODE = {"data", "results", "outputs", "multirun"}

_CHANGES_IMPORTS = ("sys.path", "sys.meta_path", "sys.modules", "site.addsitedir")
"""A module that mentions one of these may import what cannot be found from here."""


def python_files(folder: Path) -> Iterator[Path]:
    """The Python files in and below a folder, without environments, results and hidden folders."""
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
    """Whether the path lies in an installed package."""
    return bool({"site-packages", "dist-packages"} & set(path.parts))


def import_mistakes(names: Iterable[str], *, installed: bool) -> Iterator[str]:
    """Yield a line for each reason why a `package.module:name` cannot be imported.

    These are syntax errors and, with `installed` (this machine will import the code), missing modules. Only statements
    at the top level of a file count: an import inside `try` or a function may be allowed to fail.
    """
    seen: set[Path] = set()
    for name in sorted(names):
        yield from _of_module(name.partition(":")[0], seen, installed)


def _of_module(module: str, seen: set[Path], installed: bool) -> Iterator[str]:
    """Mistakes in this module, the packages above it, and all of the user's modules that it imports."""
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        file = _own_file(".".join(parts[:length]))
        if file is None or file in seen:
            continue
        seen.add(file)
        try:
            tree, changes_imports = _parsed(file, file.stat().st_mtime_ns)
        except SyntaxError as error:
            yield f"{file}, line {error.lineno}: {type(error).__name__}: {error.msg}"
            continue
        package = parts[: length if file.name == "__init__.py" else length - 1]
        yield from _of_imports(file, tree, package, seen, installed and not changes_imports)


def _of_imports(file: Path, tree: ast.Module, package: list[str], seen: set[Path], installed: bool) -> Iterator[str]:
    for node in tree.body:
        for name in _imported(node, package):
            if installed and _spec(name) is None:
                yield f"{file}, line {node.lineno}: there is no module {name.partition('.')[0]!r} in this environment"
            else:
                yield from _of_module(name, seen, installed)


def _imported(node: ast.stmt, package: list[str]) -> Iterator[str]:
    """The absolute names that a statement imports; a name imported from a module may be a module itself."""
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
        above = package[: len(package) - node.level + 1] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        if origin:
            yield from dict.fromkeys([origin, *(f"{origin}.{each.name}" for each in node.names)])


@functools.lru_cache(maxsize=256)
def _parsed(file: Path, changed_ns: int) -> tuple[ast.Module, bool]:
    """The parsed module (cached by its mtime), and whether it changes how modules are found. Raises SyntaxError."""
    text = file.read_bytes()
    return ast.parse(text, str(file)), any(word.encode() in text for word in _CHANGES_IMPORTS)


def _spec(name: str) -> ModuleSpec | None:
    """The spec of a name's top-level package; None if it cannot be found."""
    top = name.partition(".")[0]
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # a loaded module without a spec, such as __main__
        return ModuleSpec(top, None)


def _own_file(module: str) -> Path | None:
    """The source file of one of the user's modules; None if it is installed, shipped, or not a Python file."""
    top, *rest = module.split(".")
    if top in sys.stdlib_module_names or top in SHIPPED or (spec := _spec(module)) is None:
        return None
    roots = [Path(root) for root in spec.submodule_search_locations or ()]
    places = [root.joinpath(*rest) for root in roots] if roots else [] if rest else [Path(spec.origin or "")]
    candidates = [file for place in places for file in (place, place.with_suffix(".py"), place / "__init__.py")]
    file = next((each for each in candidates if each.suffix == ".py" and each.is_file()), None)
    return None if file is None or is_installed(file) else file
