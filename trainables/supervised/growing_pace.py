"""The speed of a training whose batches grew: no window of it is like another, and so it is the mean over the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainables.clock import Window
from trainables.supervised.loop import Epoch


def whole_training(epochs: Sequence[Epoch]) -> Window:
    """All epochs from the second on, or the only one."""
    steady = epochs[1:] or epochs
    return Window(seconds=math.fsum(epoch.seconds for epoch in steady), steps=sum(epoch.steps for epoch in steady))


def mean_figures(epochs: Sequence[Epoch], replicas: int) -> dict[str, Any]:
    """`samples_per_s` and `epoch_s` over the same."""
    steady, window = epochs[1:] or epochs, whole_training(epochs)
    samples = sum(epoch.samples for epoch in steady) * replicas
    return {"samples_per_s": samples / window.seconds, "epoch_s": window.seconds / len(steady)}
