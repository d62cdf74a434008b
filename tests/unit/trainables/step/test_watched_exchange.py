from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.unit.trainables.ranks import Processes, rendezvous
from trainables import process_group
from trainables.context import Context
from trainables.step import strategies


def exchanged(rank: int, meet: str, wire: torch.dtype | None, watched: bool) -> tuple[list[float], list[float]]:
    """A rank's gradients as they were seen before the exchange, and after it."""
    process_group.join(Context.alone(rank=rank, world_size=2, rendezvous=meet, gang_id=meet))
    seen: list[float] = []
    noise: Any = SimpleNamespace(see=lambda bucket: seen.extend(bucket.tolist())) if watched else None
    model = nn.Linear(3, 1, bias=False)
    parallel = DistributedDataParallel(model)
    strategies._hook(parallel, strategies.Exchange(wire=wire, noise=noise))
    parallel(torch.full((1, 3), rank + 1.0)).sum().backward()
    assert model.weight.grad is not None
    return seen, model.weight.grad.flatten().tolist()


@pytest.mark.parametrize("wire", [None, torch.bfloat16])
@pytest.mark.parametrize("watched", [False, True])
def test_it_sees_the_ranks_own_gradients_and_changes_none(
    pair: Processes, wire: torch.dtype | None, watched: bool
) -> None:
    meet = rendezvous()
    found = pair.call(exchanged, (0, meet, wire, watched), (1, meet, wire, watched))
    assert found == [([own] * 3 if watched else [], [1.5] * 3) for own in (1.0, 2.0)]
