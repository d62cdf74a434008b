"""One process that drives several GPUs, as many people's scripts do."""

from __future__ import annotations

import torch
from torch import nn

from trainables.context import Context
from trainables.step.strategy import Exchange, Strategy

SLOWER = (
    "strategy=data_parallel copies the model to every GPU in every step, and computes the loss on one of them alone:"
    " ddp is faster"
)


def data_parallel(model: nn.Module, context: Context, exchange: Exchange) -> Strategy:
    """The rank's share scattered over its GPUs by nn.DataParallel, outputs gathered on the first.

    Gradients of all replicas add up on the first GPU, where the loss is summed over the whole share: the update is the
    one of a single GPU. Running statistics are those of the first GPU's part. Raises ValueError without GPUs, with
    several ranks, and for a compiled model, whose replicas would all run on the first GPU.
    """
    if context.device == "cpu":
        raise ValueError("strategy=data_parallel drives a rank's GPUs, and this one has none: use ddp or single")
    if context.world_size != 1:
        raise ValueError(f"strategy=data_parallel has one rank, not {context.world_size}: use ddp")
    if model._compiled_call_impl is not None:
        raise ValueError("strategy=data_parallel cannot train a compiled model: set trainable.compile=off")
    if len(context.devices) > 1:
        context.remark(SLOWER)
        # Replicas live in new threads every step, and each thread of cuDNN's would try all its algorithms again.
        torch.backends.cudnn.benchmark = False
    return Strategy(
        forward=nn.DataParallel(model, device_ids=list(range(len(context.devices)))),
        loss_scale=1 / context.batch.global_batch_size,
        capturable=False,  # replicas run in threads of their own
    )
