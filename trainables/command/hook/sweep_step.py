# mypy: ignore-errors
"""Marks training steps of any program for a sweep: `from sweep_step import step`. Without a sweep it does nothing."""

import sys
import time


def step(samples=0, loss=None, *, tokens=0, epoch=None, **metrics):
    """Mark the end of a training step with so many samples of this process, and its loss.

    From the first call on, only marked steps count. The time between two calls is that of a step. A call without
    samples and loss is none: it reports metrics, such as `step(epoch=3, val_accuracy=0.9)`, after an evaluation, whose
    time does not count, and after the epoch. Epochs count from 0 or 1. If no step is marked at all, as in boosting, the
    time between two epochs is that of an epoch.
    """
    # Only the hook loads this module under this name: without it, there is nothing to count for.
    if not getattr(sys.modules.get("sweep_files"), "FOLDER", ""):
        return
    import sweep_training  # beside this file

    training = sweep_training.TRAINING
    if samples or loss is not None:
        training.mark(samples, tokens, loss, epoch)
    else:
        training.pause()
        if epoch is not None:
            training.number_epoch(epoch, has_ended=True)
    if metrics or epoch is not None:
        from sweep_frameworks import emit_row  # beside this file

        values = metrics if loss is None else {"loss": loss, **metrics}
        at_s = None if training.is_marked else time.monotonic()
        emit_row(epoch, training.counts.whole.steps, values, at_s)
