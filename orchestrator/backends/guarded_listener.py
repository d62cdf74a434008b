"""A listener that is called from within code that catches what it raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.journal.listener import Listener


class GuardedListener:
    """Keeps what the listener raised on its way through Tune or a trainable, so that it can be raised again."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._error: BaseException | None = None

    def __getstate__(self) -> dict[str, object]:
        """Tune writes a copy of whatever it is given into a state that nobody reads; no listener goes there."""
        return {}

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """The listener; whatever is raised in the block is kept."""
        try:
            yield self._listener
        except BaseException as error:
            self._error = error
            raise

    def reraise(self) -> None:
        """Raise what was kept, if anything was."""
        if self._error is not None:
            raise self._error
