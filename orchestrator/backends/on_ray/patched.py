"""A piece of Ray that is another one for a while, where no setting would do; no ray here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def patched(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """The module has this value under this name."""
    theirs = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, theirs)
