"""The entry point of `python -m orchestrator sweep=…`."""

from __future__ import annotations

import codecs
import locale
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType


def main() -> int:
    """Run the command line and return the exit status."""
    _on_signals(lambda number, frame: os._exit(128 + number))  # before our imports, which take long on a slow disk
    if codecs.lookup(encoding := locale.getpreferredencoding(False)).name != "utf-8":
        remedy = "set PYTHONUTF8=1, or a locale such as C.UTF-8"
        print(f"the encoding here is {encoding}, but configs, results and tables are UTF-8: {remedy}", file=sys.stderr)
        return 2
    if hiding := list(_hiding(("sweeps", "trainables"))):
        return _hidden_by(hiding)
    from orchestrator.cli.streams import outlast_readers
    from orchestrator.exit import leave
    from orchestrator.run.interrupt import INTERRUPTED, end_at_once

    outlast_readers()
    _on_signals(end_at_once)  # until a sweep runs there is nothing to clean up
    try:
        from orchestrator.cli.app import main as app

        if os.getcwd() not in sys.path and "" not in sys.path:  # like `python -m`: the user's code may be here
            sys.path.insert(0, os.getcwd())
        status = app(sys.argv[1:])
    except (ImportError, AttributeError):
        if hiding := list(_hiding(sys.stdlib_module_names)):
            return _hidden_by(hiding)
        raise
    if status in INTERRUPTED:  # without unloading Ray and torch, which takes seconds
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        leave(status)
    return status


def _hiding(names: Iterable[str]) -> Iterator[Path]:
    """Yield what is in the working folder, and so hides a package of the orchestrator's or of Python's."""
    here = Path.cwd()
    if here == Path(__file__).parents[1] or not {"", str(here)} & set(sys.path):
        return
    for name in names:
        places = (here / f"{name}.py", here / name / "__init__.py")
        yield from (place for place in places if place.exists())


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
