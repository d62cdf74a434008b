"""One rank made slower on purpose, where no unequal pair of devices is at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainables.context import Batch
from trainables.inputs.inputs import Inputs, Minibatch


class SlowedInputs:
    """Another input, of a rank whose device pauses before every pass.

    The pause is of fixed length, as measured on the rank alone: time spent in waiting for other ranks is not stretched.
    It delays the rank's gradients as a device would that computes longer.
    """

    def __init__(self, inputs: Inputs, pause: Callable[[], None]) -> None:
        """`pause` as made by `trainables.inputs.pause`."""
        self._inputs, self._pause = inputs, pause
        self.feed = inputs.feed

    def epoch(self, number: int, start: int = 0) -> Iterator[Minibatch]:
        """See `Inputs`."""
        for minibatch in self._inputs.epoch(number, start):
            self._pause()
            yield minibatch

    def rebatch(self, batch: Batch) -> None:
        """See `Inputs`; the pause stays, so this suits no batch that grows."""
        self._inputs.rebatch(batch)
        self.feed = self._inputs.feed

    def close(self) -> None:
        """See `Inputs`."""
        self._inputs.close()
