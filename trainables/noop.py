"""A trainable that does nothing, to measure the overhead of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainables.context import Context


def train(config: Mapping[str, Any], context: Context) -> None:
    """Report one row and summarize; several ranks do one all-reduce. A single rank needs no torch."""
    ranks = 1
    if context.world_size > 1:
        import torch

        from trainables import process_group

        ranks = int(process_group.join(context).sum(torch.ones(1, device=context.device)).item())
    work = {"samples": context.batch.global_batch_size, "steps": 1}
    context.report({"epoch": 1, "ranks": ranks} | work)
    # It trains one step's worth whatever the budget, so its work is not compared with the budget.
    context.summarize({"epochs": 1, "train_s": 0.0, "own_length": True} | work)
