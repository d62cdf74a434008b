"""What Ray would do to the driver's signals, and does not here."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ray._private import utils as ray_utils

from orchestrator.backends.on_ray.patched import patched


@contextmanager
def handler_kept(number: int) -> Iterator[None]:
    """Undo what Ray does to the driver's handler of this signal; only the main thread can, and there only Ray does."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, before)


def signals_left_to_us() -> AbstractContextManager[None]:
    """Where it connects, for seconds, Ray would leave the program at SIGTERM, and its processes behind."""
    return patched(ray_utils, "set_sigterm_handler", lambda handler: None)
