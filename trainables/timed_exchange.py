"""An exchange of gradients whose time is taken; on CPUs only, where it is the host that exchanges."""

# No postponed annotations: DistributedDataParallel looks at the hook's.
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from trainables.stopwatch import Stopwatch


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The state of the hook."""

    stopwatch: Stopwatch
    exchange: Callable[[dist.GradBucket], Future[Tensor]]  # type: ignore[name-defined]
    """Another hook, with its own state."""


def average(timed: Timed, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """DistributedDataParallel's communication hook: what the other hook makes of the bucket."""
    return timed.stopwatch.exchanging(lambda: timed.exchange(bucket))
