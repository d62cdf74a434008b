"""Strategies: how the ranks of a model exchange gradients, so that an update equals that of a single process.

On GPUs DistributedDataParallel exchanges gradients during the backward pass, through a hook if they are rounded or
watched. `FlatExchange` exchanges them in one piece after the backward pass, where an exchange during it gains nothing:

- With torch.compile all gradients become known at the very end of the backward pass. DistributedDataParallel then only
  adds a copy per parameter and an all-reduce per bucket: a captured step of a compiled resnet50 with 128 samples per
  GPU on 2 H200 takes 7.10 ms alone, 7.77 ms with it, 7.56 ms with `FlatExchange`.
- On CPUs an exchange takes cores away from the backward pass: see docs/limits.md.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainables.context import Context
from trainables.gradient_noise import GradientNoise
from trainables.process_group import rehearses
from trainables.step.compilation import Compiled
from trainables.step.sharding import sharded_parts, without_communication, without_reduction
from trainables.step.stopwatch import Stopwatch


class FlatExchange:
    """Averages all gradients at once; parameters must have one dtype and all take part in every pass."""

    def __init__(self, model: nn.Module, wire: torch.dtype | None = None, noise: GradientNoise | None = None) -> None:
        """Copy rank 0's parameters and buffers to all ranks, as DistributedDataParallel does.

        Gradients are sent as `wire` (None: as they are); `noise` sees the rank's own gradients before that.
        """
        for value in (*model.parameters(), *model.buffers()):
            dist.broadcast(value.data, src=0)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._noise = noise
        first = self._parameters[0]
        sizes = [parameter.numel() for parameter in self._parameters]
        whole = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self._sent = whole.to(wire or whole.dtype)
        # Views of one buffer: a single collective for all parameters, whatever their number.
        self._places = self._in_layout(self._sent.split(sizes))
        self._means = self._places if self._sent is whole else self._in_layout(whole.split(sizes))

    @torch.no_grad()
    def __call__(self) -> None:
        """Replace the rank's gradients by the mean over all ranks. Raises ValueError for a parameter without one."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if len(gradients) < len(self._parameters):
            unused = len(self._parameters) - len(gradients)
            raise ValueError(f"strategy=ddp: {unused} of the model's parameters take no part in its forward pass")
        if self._noise:
            self._noise.see(*gradients)
        torch._foreach_copy_(self._places, gradients)
        all_reduce_mean(self._sent)
        if self._means is not self._places:
            torch._foreach_copy_(self._means, self._places)
        for parameter, mean in zip(self._parameters, self._means, strict=True):
            parameter.grad = mean

    def _in_layout(self, parts: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(parts, self._parameters, strict=True)
        return [part.as_strided(parameter.size(), parameter.stride()) for part, parameter in pairs]


def all_reduce_mean(values: Tensor) -> None:
    """Replace the values by their mean over all ranks."""
    if values.is_cuda:
        dist.all_reduce(values, op=dist.ReduceOp.AVG)
    else:  # gloo cannot average
        dist.all_reduce(values.div_(dist.get_world_size()))


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How gradients are exchanged, and what observes the exchange."""

    wire: torch.dtype | None = None  # the format in which gradients are sent; None: as they are
    noise: GradientNoise | None = None  # sees the gradients of each part of a step
    stopwatch: Stopwatch | None = None  # measures the exchange on CPUs, where the host does it


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A model prepared for training by its ranks."""

    forward: nn.Module  # the module to call in training: N×C×H×W → outputs
    loss_scale: float
    """The factor on the sum of a rank's losses. With it every sample weighs 1 / global batch in the update, for any
    shares and accumulation steps."""
    uncapturable: str = ""  # why a step cannot be captured in a CUDA graph; empty if it can
    without_exchange: Callable[[], AbstractContextManager[None]] = nullcontext
    """The context of a forward and backward pass whose gradients are only accumulated locally."""
    exchange: Callable[[], None] = lambda: None
    """Called after a step's backward passes, to make gradients those of all ranks."""
    without_communication: Callable[[], AbstractContextManager[None]] | None = None
    """The context of steps that communicate nothing; None: those `without_exchange`."""
    share_buffers: Callable[[], None] = lambda: None  # copies rank 0's buffers (running statistics) to all ranks


_SIGNATURE = inspect.signature(DistributedDataParallel).parameters
_NOT_EACH_FORWARD: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _SIGNATURE else "broadcast_buffers": False
}
"""The argument, in older and newer torch, that stops the copying of buffers before every forward pass.

Training does not read them; evaluation copies them itself.
"""

COPIES_THE_MODEL = (
    "strategy=data_parallel copies the model to every GPU in every step, and computes the loss on one of them alone:"
    " ddp is faster"
)


def single(model: nn.Module, context: Context, exchange: Exchange) -> Strategy:
    """Prepare a model for one process and one device."""
    return Strategy(forward=model, loss_scale=1 / context.batch.global_batch_size)


def data_parallel(model: nn.Module, context: Context, exchange: Exchange) -> Strategy:
    """Prepare a model for nn.DataParallel, which scatters the rank's share over its GPUs and gathers the outputs.

    Gradients of all replicas add up on the first GPU, where the loss is summed over the whole share: the update equals
    that of a single GPU. Running statistics are those of the first GPU's part. Raises ValueError for a compiled model,
    whose replicas would all run on the first GPU.
    """
    if model._compiled_call_impl is not None:
        raise ValueError("strategy=data_parallel cannot train a compiled model: set trainable.compile=off")
    if len(context.devices) > 1:
        context.remark(COPIES_THE_MODEL)
        # Replicas run in new threads every step, and cuDNN would try all its algorithms again in each thread.
        torch.backends.cudnn.benchmark = False
    return Strategy(
        forward=nn.DataParallel(model, device_ids=list(range(len(context.devices)))),
        loss_scale=1 / context.batch.global_batch_size,
        uncapturable="its replicas run in other threads",
    )


def ddp(model: nn.Module, context: Context, exchange: Exchange) -> Strategy:
    """Prepare a replica per rank, whose gradients are averaged over the ranks; with one rank this is `single`.

    Gradients are averaged during the backward pass; after it for compiled models and on CPUs. The ranks' shares may be
    unequal: the scaled losses weigh them.
    """
    if context.world_size == 1:
        return single(model, context, exchange)
    averaged = partial(
        Strategy,
        loss_scale=context.world_size / context.batch.global_batch_size,  # the average divides by the number of ranks
        share_buffers=partial(share_buffers, model),
    )
    if isinstance(model, Compiled) or context.device == "cpu":
        flat: Callable[[], None] = FlatExchange(model, exchange.wire, exchange.noise)
        # On GPUs the exchange overlaps, and its time on the host means nothing.
        if exchange.stopwatch and context.device == "cpu":
            flat = partial(exchange.stopwatch.exchanging, flat)
        return averaged(forward=model, exchange=flat)
    # Gradients as views of the buckets save a copy and their memory once more.
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True, **_NOT_EACH_FORWARD)
    register_hook(parallel, exchange)
    if not rehearses():
        release_first_buckets(parallel)
    return averaged(forward=parallel, without_exchange=parallel.no_sync)


def fsdp(model: nn.Module, context: Context, exchange: Exchange) -> Strategy:
    """Prepare a model whose parameters `trainables.step.sharding` has divided among the ranks.

    Gradients are averaged, each to the rank that holds the parameter, during the backward pass. With one rank this is
    `single`, because to gather the parameters would only copy them: 6% of a step with 1.56B parameters on an H100.
    """
    if context.world_size == 1:
        return single(model, context, exchange)
    [root, *_] = sharded_parts(model)
    assert isinstance(root, nn.Module)
    return Strategy(
        forward=model,
        loss_scale=context.layout.data_parallel_size / context.batch.global_batch_size,
        uncapturable="every pass gathers parameters to new addresses, and a graph replays the first ones",
        without_exchange=partial(without_reduction, root),
        without_communication=partial(without_communication, root),
        share_buffers=partial(share_buffers, model),
    )


def share_buffers(model: nn.Module) -> None:
    """Copy rank 0's buffers (running statistics) to all ranks."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


STRATEGIES: dict[str, Callable[[nn.Module, Context, Exchange], Strategy]] = {
    "single": single,
    "data_parallel": data_parallel,
    "ddp": ddp,
    "ddp_unequal": ddp,
    "fsdp": fsdp,
    "fsdp_grad": fsdp,
    "independent": single,
}


_WATCHDOG_S = 0.25  # NCCL's watchdog looks for collectives that have ended every 0.1 s


def release_first_buckets(parallel: DistributedDataParallel) -> None:
    """Wait after the first exchange until NCCL's watchdog has let go of the gradients.

    Next, DistributedDataParallel makes other buckets for them. A quick second step would need the memory of all
    gradients once more, while the watchdog holds the first buckets: 4.6 of 38 GB with 1.2B parameters.
    """
    exchanges = False

    def before_forward(module: nn.Module, inputs: object) -> None:
        nonlocal exchanges
        if exchanges:
            torch.cuda.synchronize()
            time.sleep(_WATCHDOG_S)
            handle.remove()
        exchanges = parallel.require_backward_grad_sync

    handle = parallel.register_forward_pre_hook(before_forward)


def register_hook(parallel: DistributedDataParallel, exchange: Exchange) -> None:
    """Register a communication hook if gradients are rounded or observed; the default is an all-reduce."""
    standard = bf16_compress_hook if exchange.wire is torch.bfloat16 else allreduce_hook
    reduce = partial(_keep_own, exchange.wire) if rehearses() else standard
    noise = exchange.noise

    def observe_and_reduce(bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        if noise:
            noise.see(bucket.buffer())  # the rank's own gradients, before they are rounded and reduced
        return reduce(None, bucket)  # type: ignore[arg-type]

    if noise or reduce is not allreduce_hook:
        # DistributedDataParallel refuses annotations that are strings, as all are in this module; a lambda has none.
        parallel.register_comm_hook(None, lambda _, bucket: observe_and_reduce(bucket))


def _keep_own(
    wire: torch.dtype | None,
    state: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[Tensor]:
    """Return a rank's own gradients, rounded as if they were sent: collectives of a rehearsal return no future."""
    buffer = bucket.buffer()
    if wire is not None:
        buffer.copy_(buffer.to(wire))
    future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else [])
    future.set_result(buffer)
    return future


def prepare(model: nn.Module, context: Context, exchange: Exchange | None = None) -> Strategy:
    """Prepare a model, already on its device, for the trial's strategy. Raises ValueError for an unknown strategy."""
    if context.layout.strategy not in STRATEGIES:
        raise ValueError(f"strategy={context.layout.strategy!r} is not one of {', '.join(STRATEGIES)}")
    exchange = exchange or Exchange()
    strategy = STRATEGIES[context.layout.strategy](model, context, exchange)
    if exchange.noise and context.world_size == 1:
        return replace(strategy, without_exchange=exchange.noise.one_pass)
    return strategy
