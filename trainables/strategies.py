"""How a model's gradients come from all ranks' samples, so that the update is the one a single process would make."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainables import direct_exchange, timed_exchange, watched_exchange
from trainables.context import Context
from trainables.data_parallel import data_parallel
from trainables.gradient_noise import GradientNoise
from trainables.stopwatch import Stopwatch
from trainables.strategy import Strategy
from trainables.timed_exchange import Timed
from trainables.watched_exchange import Watched

__all__ = ["STRATEGIES", "Strategy", "follows_speed", "prepare"]

_SIGNATURE = inspect.signature(DistributedDataParallel).parameters
_NOT_EACH_FORWARD: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _SIGNATURE else "broadcast_buffers": False
}
"""Buffers are not shared before every forward pass, in the words of the old torch and of the one that deprecates them.

Training does not read them: shared before an evaluation they are the same.
"""


def single(model: nn.Module, context: Context) -> Strategy:
    """One process, one device."""
    if context.world_size != 1:
        raise ValueError(f"strategy={context.strategy} has one rank, not {context.world_size}: use ddp")
    return Strategy(forward=model, loss_scale=1 / context.batch.global_batch_size)


def ddp(model: nn.Module, context: Context) -> Strategy:
    """A replica a rank, gradients averaged over the ranks during the backward pass; one rank is `single`.

    The ranks' shares may be unequal: the scaled losses weigh them.
    """
    if context.world_size == 1:
        return single(model, context)
    parallel = DistributedDataParallel(
        model,
        gradient_as_bucket_view=True,
        **_NOT_EACH_FORWARD,
    )

    def share_buffers() -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    return Strategy(
        forward=parallel,
        loss_scale=context.world_size / context.batch.global_batch_size,  # DDP divides by the number of ranks
        without_exchange=parallel.no_sync,
        share_buffers=share_buffers,
    )


STRATEGIES: dict[str, Callable[[nn.Module, Context], Strategy]] = {
    "single": single,
    "data_parallel": data_parallel,
    "ddp": ddp,
    "ddp_unequal": ddp,
    "independent": single,
}


def follows_speed(context: Context) -> bool:
    """Whether the ranks' shares are to be in proportion to their speeds."""
    return context.strategy == "ddp_unequal" and context.world_size > 1


def prepare(
    model: nn.Module, context: Context, noise: GradientNoise | None = None, stopwatch: Stopwatch | None = None
) -> Strategy:
    """The model, already on its device, under the trial's strategy; `noise` watches its gradients.

    The `stopwatch` takes the time of their exchange, on CPUs.

    Raises ValueError for a strategy that there is not.
    """
    if context.strategy not in STRATEGIES:
        raise ValueError(f"strategy={context.strategy!r} is not one of {', '.join(STRATEGIES)}")
    strategy = STRATEGIES[context.strategy](model, context)
    if isinstance(strategy.forward, DistributedDataParallel):
        _choose_exchange(strategy.forward, context, noise, stopwatch)
        return strategy
    return replace(strategy, without_exchange=noise.one_pass) if noise else strategy


def _choose_exchange(
    parallel: DistributedDataParallel, context: Context, noise: GradientNoise | None, stopwatch: Stopwatch | None
) -> None:
    on_cpu = context.device == "cpu"
    hooks: list[tuple[Any, Any]] = []
    if noise:
        hooks = [(Watched(see=noise.see), watched_exchange.average)]
    elif on_cpu:
        hooks = [(direct_exchange.MOST_BYTES, direct_exchange.average)]
    for state, hook in hooks:
        if on_cpu and stopwatch is not None:
            timed = Timed(stopwatch=stopwatch, exchange=functools.partial(hook, state))
            parallel.register_comm_hook(timed, timed_exchange.average)
        else:
            parallel.register_comm_hook(state, hook)
