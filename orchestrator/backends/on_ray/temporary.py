"""Context managers for temporary changes: environment variables, attributes of a module, handling of signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def patched(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module, for what Ray has no setting for."""
    theirs = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, theirs)


@contextmanager
def handler_kept(number: int) -> Iterator[None]:
    """Restore the handler of this signal, which Ray replaces. Both are possible in the main thread only."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, before)


@contextmanager
def deaf_children(number: int) -> Iterator[None]:
    """Processes started meanwhile by this thread never receive this signal; this process does, in another thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
