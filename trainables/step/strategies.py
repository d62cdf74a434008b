"""How a model's gradients come from all ranks' samples, so that the update is the one a single process would make."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainables.context import Context
from trainables.step import watched_exchange
from trainables.step.compilation import Compiled
from trainables.step.flat_exchange import FlatExchange
from trainables.step.strategy import Exchange, Strategy
from trainables.step.watched_exchange import Watched

_SIGNATURE = inspect.signature(DistributedDataParallel).parameters
_NOT_EACH_FORWARD: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _SIGNATURE else "broadcast_buffers": False
}
"""Buffers are not shared before every forward pass, in the words of the old torch and of the one that deprecates them.

Training does not read them: shared before an evaluation they are the same.
"""

SLOWER = (
    "strategy=data_parallel copies the model to every GPU in every step, and computes the loss on one of them alone:"
    " ddp is faster"
)


def single(model: nn.Module, context: Context, exchange: Exchange) -> Strategy:
    """One process, one device."""
    if context.world_size != 1:
        raise ValueError(f"strategy={context.strategy} has one rank, not {context.world_size}: use ddp")
    return Strategy(forward=model, loss_scale=1 / context.batch.global_batch_size)


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


def ddp(model: nn.Module, context: Context, exchange: Exchange) -> Strategy:
    """A replica a rank, gradients averaged over the ranks; one rank is `single`.

    The average is taken during the backward pass; after it where that is one piece of compiled code, and on CPUs. The
    ranks' shares may be unequal: the scaled losses weigh them.
    """
    if context.world_size == 1:
        return single(model, context, exchange)

    def share_buffers() -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    averaged = partial(
        Strategy,
        loss_scale=context.world_size / context.batch.global_batch_size,  # for the average divides by the ranks
        share_buffers=share_buffers,
    )
    if isinstance(model, Compiled) or context.device == "cpu":
        flat: Callable[[], None] = FlatExchange(model, exchange.wire, exchange.noise)
        if exchange.stopwatch and context.device == "cpu":
            flat = partial(exchange.stopwatch.exchanging, flat)
        return averaged(forward=model, exchange=flat)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True, **_NOT_EACH_FORWARD)
    _hook(parallel, exchange)
    return averaged(forward=parallel, without_exchange=parallel.no_sync)


STRATEGIES: dict[str, Callable[[nn.Module, Context, Exchange], Strategy]] = {
    "single": single,
    "data_parallel": data_parallel,
    "ddp": ddp,
    "ddp_unequal": ddp,
    "independent": single,
}


def follows_speed(context: Context) -> bool:
    """Whether the ranks' shares are to be in proportion to their speeds."""
    return context.strategy == "ddp_unequal" and context.world_size > 1


def prepare(model: nn.Module, context: Context, exchange: Exchange | None = None) -> Strategy:
    """The model, already on its device, under the trial's strategy. Raises ValueError for one that there is not."""
    if context.strategy not in STRATEGIES:
        raise ValueError(f"strategy={context.strategy!r} is not one of {', '.join(STRATEGIES)}")
    exchange = exchange or Exchange()
    strategy = STRATEGIES[context.strategy](model, context, exchange)
    if exchange.noise and context.world_size == 1:
        return replace(strategy, without_exchange=exchange.noise.one_pass)
    return strategy


def _hook(parallel: DistributedDataParallel, exchange: Exchange) -> None:
    """Register a communication hook where DistributedDataParallel's own way is not what is wanted."""
    hook: Callable[[Any, Any], Future[Tensor]] = allreduce_hook
    if exchange.wire is torch.bfloat16:
        hook = bf16_compress_hook
    if exchange.noise:
        all_ranks = partial(hook, None)
        parallel.register_comm_hook(Watched(see=exchange.noise.see, exchange=all_ranks), watched_exchange.average)
    elif hook is not allreduce_hook:
        parallel.register_comm_hook(None, hook)
