"""DistributedDataParallel's exchange of gradients, with a look at the rank's own before it."""

# No postponed annotations: DistributedDataParallel looks at the hook's.
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The state of the hook."""

    see: Callable[[Tensor], None]
    """Is shown each bucket of the rank's own gradients, before the exchange changes it."""
    exchange: Callable[[dist.GradBucket], Future[Tensor]]  # type: ignore[name-defined]
    """Another hook, with its own state."""


def average(watched: Watched, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """DistributedDataParallel's communication hook: what the other hook makes of the bucket, which is seen before."""
    watched.see(bucket.buffer())
    return watched.exchange(bucket)
