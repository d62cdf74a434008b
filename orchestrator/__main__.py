"""The entry point of `python -m orchestrator sweep=…`."""

from __future__ import annotations

import os
import sys

# A file such as enum.py in the working folder would end the program before it could name that file.
sys.path.append(sys.path.pop(0))

import codecs
import locale
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType

sys.path.insert(0, sys.path.pop())

_OURS = ("sweeps", "trainables")
"""Packages whose names folders of users may have."""


def main() -> int:
    """Run the command line and return the exit status."""
    _on_signals(lambda number, frame: os._exit(128 + number))  # before our imports, which take long on a slow disk
    if codecs.lookup(encoding := locale.getpreferredencoding(False)).name != "utf-8":
        remedy = "set PYTHONUTF8=1, or a locale such as C.UTF-8"
        print(f"the encoding here is {encoding}, but configs, results and tables are UTF-8: {remedy}", file=sys.stderr)
        return 2
    hiding = [path for name, path in _modules_here() if name in _OURS]
    if hiding:
        return _hidden_by(hiding)
    try:
        from orchestrator.cli.app import main as app
        from orchestrator.cli.streams import outlast_readers
        from orchestrator.end_process import leave
        from orchestrator.run.interrupt import INTERRUPTED, end_at_once
    except Exception as error:  # a module that is not the expected one may fail in any way
        hiding = _hiding_in(error)
        if hiding:
            return _hidden_by(hiding)
        if isinstance(error, ModuleNotFoundError) and error.name and "orchestrator" not in error.name:
            remedy = "write `uv run` before the command, or activate the environment that has it (docs/installation.md)"
            print(f"{sys.executable} has no package {error.name}: {remedy}", file=sys.stderr)
            return 2
        raise
    outlast_readers()
    _on_signals(end_at_once)  # until a sweep runs there is nothing to clean up
    try:
        if os.getcwd() not in sys.path and "" not in sys.path:  # like `python -m`: the user's code may be here
            sys.path.insert(0, os.getcwd())
        status = app(sys.argv[1:])
    except (ImportError, AttributeError) as error:
        hiding = _hiding_in(error)
        if hiding:
            return _hidden_by(hiding)
        raise
    if status in INTERRUPTED:  # without unloading Ray and torch, which takes seconds
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        leave(status)
    return status


def _modules_here() -> Iterator[tuple[str, Path]]:
    """Yield name and path of each module in the working folder that Python finds before all others."""
    here = Path.cwd()
    if here == Path(__file__).parents[1] or not {"", str(here)} & set(sys.path):
        return
    for path in [*here.glob("*.py"), *here.glob("*/__init__.py")]:
        yield (path.stem if path.parent == here else path.parent.name), path


def _hiding_in(error: BaseException) -> list[Path]:
    """Return modules of the working folder that were imported, or that the error names, and that hide another one.

    The hidden module is one of ours, of Python's or of an installed package.
    """
    imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    text = "".join(traceback.format_exception(error))
    elsewhere = [place for place in sys.path if place not in ("", str(Path.cwd()))]
    return [
        path
        for name, path in _modules_here()
        if (str(path) in imported or str(path) in text)
        and (name in (*_OURS, *sys.stdlib_module_names) or PathFinder.find_spec(name, elsewhere) is not None)
    ]


def _hidden_by(paths: Iterable[Path]) -> int:
    for path in paths:
        print(f"{path} hides a module that this program needs: rename it, or start elsewhere", file=sys.stderr)
    return 2


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle Ctrl-C, SIGTERM and a closed terminal, except signals that this process was started to ignore."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
