"""DistributedDataParallel's exchange of gradients, with a look at the rank's own before it."""

# No postponed annotations: DistributedDataParallel looks at the hook's.
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from trainables import direct_exchange


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The state of the hook."""

    see: Callable[[Tensor], None]
    """Is shown each bucket of the rank's own gradients, before the exchange changes it."""


def average(watched: Watched, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """DistributedDataParallel's communication hook: the mean of all ranks' buckets, as without anybody looking."""
    watched.see(bucket.buffer())
    if bucket.buffer().is_cuda:
        mean: Future[Tensor] = allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None: all ranks
        return mean
    return direct_exchange.average(direct_exchange.MOST_BYTES, bucket)
