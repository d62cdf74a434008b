"""One rank made slower on purpose, where no unequal pair of devices is at hand."""

from __future__ import annotations

import time
from collections.abc import Iterator

from trainables.clock import Clock
from trainables.context import Batch
from trainables.inputs.inputs import Inputs, Minibatch


class SlowedInputs:
    """Another input, of a rank that sleeps before every pass.

    The pause is of fixed length, as measured on the rank alone: time spent in waiting for other ranks is not stretched.
    It begins only when the device has done its work, as on a device that computes longer, and so delays the rank's
    gradients as that would.
    """

    def __init__(self, inputs: Inputs, pause_s: float, clock: Clock) -> None:
        self._inputs, self._pause_s, self._clock = inputs, pause_s, clock
        self.feed = inputs.feed

    def epoch(self, number: int, start: int = 0) -> Iterator[Minibatch]:
        """See `Inputs`."""
        for minibatch in self._inputs.epoch(number, start):
            self._clock.read()
            time.sleep(self._pause_s)
            yield minibatch

    def rebatch(self, batch: Batch) -> None:
        """See `Inputs`; the pause stays, so this suits no batch that grows."""
        self._inputs.rebatch(batch)
        self.feed = self._inputs.feed

    def close(self) -> None:
        """See `Inputs`."""
        self._inputs.close()
