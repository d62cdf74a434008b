"""An epoch's seconds by what they went into."""

from __future__ import annotations

from collections.abc import Sequence

from trainables.step.stopwatch import Parts
from trainables.supervised.loop import Epoch


def split_of(epoch: Epoch, *, on_gpu: bool) -> dict[str, float]:
    """Columns of the epoch's row, rank 0's view; together they are its seconds.

    `data_s`, `compute_s`, `communication_s` (waiting for slower ranks is in it) and `rest_s`: the loop itself. On a GPU
    compute and communication run into each other, and only the device's waiting for data is told apart: of an epoch
    with enough steps to know it, else nothing is.
    """
    parts = epoch.parts
    if parts.untimed:
        return {}
    if on_gpu:
        return {"data_s": parts.data_s, "rest_s": max(0.0, epoch.seconds - parts.data_s)}
    known_s = parts.data_s + parts.compute_s + parts.exchange_s
    return {
        "data_s": parts.data_s,
        "compute_s": parts.compute_s,
        "communication_s": parts.exchange_s,
        "rest_s": max(0.0, epoch.seconds - known_s),
    }


def mean_parts(epochs: Sequence[Epoch], steps: int) -> Parts:
    """The mean parts of so many steps of these epochs."""
    taken = sum(epoch.steps for epoch in epochs) or 1
    return Parts(
        data_s=sum(epoch.parts.data_s for epoch in epochs) / taken * steps,
        exchange_s=sum(epoch.parts.exchange_s for epoch in epochs) / taken * steps,
        step_s=sum(epoch.parts.step_s for epoch in epochs) / taken * steps,
    )
