import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.unit.trainables.ranks import Processes, rendezvous
from trainables import direct_exchange, process_group
from trainables.context import Context


def gradients(rank: int, meet: str, most_bytes: int) -> list[list[float]]:
    process_group.join(Context.alone(rank=rank, world_size=2, rendezvous=meet, gang_id=meet))
    direct_exchange.MOST_BYTES = most_bytes
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 3)).double()
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    parallel.register_comm_hook(most_bytes, direct_exchange.average)
    parallel(torch.full((1, 7), rank + 1.0, dtype=torch.float64)).square().sum().backward()
    return [parameter.grad.flatten().tolist() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("most_bytes", [2 * 2**20, 0])
def test_gradients_are_averaged_either_way(pair: Processes, most_bytes: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 3)).double()
    inputs = torch.tensor([[1.0], [2.0]], dtype=torch.float64).expand(2, 7)
    (model(inputs).square().sum() / 2).backward()
    meet = rendezvous()
    one, other = pair.call(gradients, (0, meet, most_bytes), (1, meet, most_bytes))
    assert one == other
    for parameter, averaged in zip(model.parameters(), one, strict=True):
        assert parameter.grad is not None
        assert averaged == pytest.approx(parameter.grad.flatten().tolist(), abs=1e-14)
