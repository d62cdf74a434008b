"""Time in which a rank's device does nothing for the training, as if its work took longer.

It makes one rank slower on purpose, where no unequal pair of devices is at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from trainables.inputs.inputs import Minibatch

CALIBRATION_CYCLES = 100_000_000
"""About 50 ms of a GPU's clock."""


def pause(device: str, seconds: float) -> Callable[[], None]:
    """What makes the device wait for so long each time it is called.

    A GPU waits in its own stream, behind what it was given and before what follows: the host goes on giving it work, as
    it does with a slower device, and whatever runs in other streams is not held up. A CPU sleeps.
    """
    if not device.startswith("cuda"):
        return partial(time.sleep, seconds)
    return partial(torch.cuda._sleep, round(seconds * _cycles_per_s()))


def paused(batches: Iterator[Minibatch], wait: Callable[[], None]) -> Iterator[Minibatch]:
    """The same minibatches, behind each of which the device pauses before its pass.

    The pause is of fixed length, as measured on the rank alone: time spent in waiting for other ranks is not stretched.
    It delays the rank's gradients as a device would that computes longer, and counts as its computing.
    """
    for minibatch in batches:
        wait()
        yield minibatch


def _cycles_per_s() -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(2):  # the first one wakes the clocks
        begin.record()
        torch.cuda._sleep(CALIBRATION_CYCLES)
        end.record()
        end.synchronize()
    elapsed_ms: float = begin.elapsed_time(end)
    return 1e3 * CALIBRATION_CYCLES / elapsed_ms
