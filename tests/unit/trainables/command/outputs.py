"""A reader of a command's output, and the metrics that follow from what it has read."""

import time
from collections.abc import Callable
from typing import Any

from trainables.command.metrics import CommandMetrics
from trainables.command.output_parser import OutputParser
from trainables.command.settings import CommandSettings


def reading(
    settings: CommandSettings,
    batch: int | None = None,
    epochs: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    **known: Any,
) -> tuple[OutputParser, CommandMetrics]:
    """A reader of output of a trial with this global batch and budget, and its metrics; `known` are fields of them."""
    reader = OutputParser(settings, epochs, clock)
    metrics = CommandMetrics(
        output=reader.output, settings=settings, global_batch_size=batch, budget_epochs=epochs, **known
    )
    return reader, metrics
