from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.unit.trainables.ranks import CONFIG, Processes, rendezvous, run_two
from trainables import process_group
from trainables.context import Context
from trainables.step import strategies
from trainables.step.strategies import FlatExchange


def small_model(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 5)).double()
    model[1].eval()  # its statistics would be each rank's own
    return model.to(memory_format=torch.channels_last)


def images(rank):
    return torch.randn(6, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


def gradients(rank, meet, wire):
    process_group.join(Context.alone(rank=rank, world_size=2, rendezvous=meet, gang_id=meet))
    model = small_model(seed=rank)
    exchange = FlatExchange(model, wire)
    for _ in range(2):  # places are used again
        model.zero_grad()
        model(images(rank)).square().sum().backward()
        exchange()
    assert all(
        parameter.grad is not None and parameter.grad.stride() == parameter.stride() for parameter in model.parameters()
    )
    return [parameter.grad.flatten().tolist() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("wire", "tolerance"), [(None, 1e-14), (torch.bfloat16, 2**-7)])
def test_gradients_are_averaged_from_rank_0s_start(pair, wire, tolerance):
    model = small_model(seed=0)
    (sum(model(images(rank)).square().sum() for rank in range(2)) / 2).backward()  # type: ignore[union-attr]
    meet = rendezvous()
    one, other = pair.call(gradients, (0, meet, wire), (1, meet, wire))
    assert one == other
    for parameter, averaged in zip(model.parameters(), one, strict=True):
        scale = float(parameter.grad.abs().max())
        assert averaged == pytest.approx(parameter.grad.flatten().tolist(), abs=tolerance * scale)


def test_bf16_exchange_learns_nearly_the_same(pair):
    losses = {}
    for exchange in ("full", "bf16"):
        config = {"trainable": CONFIG["trainable"] | {"exchange": exchange}}
        answers = run_two(pair, shares=(32, 32), config=config)
        assert [answer["status"] for answer in answers] == ["ok", "ok"], answers[0]["note"]
        losses[exchange] = answers[0]["metrics"]["loss"]
    assert losses["bf16"] != losses["full"]
    assert losses["bf16"] == pytest.approx(losses["full"], rel=0.02)


class Spare(nn.Linear):
    """A layer with a parameter that nothing depends on."""

    def __init__(self, **shape):
        super().__init__(64, 10)
        self.spare = nn.Parameter(torch.zeros(3))

    def forward(self, images):
        return super().forward(images.flatten(1))


def test_unused_parameter_is_an_error(pair):
    answers = run_two(pair, shares=(32, 32), config={"model": {"name": f"{__name__}:Spare"}})
    notes = [answer["note"] for answer in answers]
    assert all("strategy=ddp: 1 " in note for note in notes), notes


def exchanged(rank, meet, wire, watched):
    """A rank's gradients as they were seen before the exchange, and after it."""
    process_group.join(Context.alone(rank=rank, world_size=2, rendezvous=meet, gang_id=meet))
    seen: list[float] = []
    noise: Any = SimpleNamespace(see=lambda bucket: seen.extend(bucket.tolist())) if watched else None
    model = nn.Linear(3, 1, bias=False)
    parallel = DistributedDataParallel(model)
    strategies.register_hook(parallel, strategies.Exchange(wire=wire, noise=noise))
    parallel(torch.full((1, 3), rank + 1.0)).sum().backward()
    return seen, model.weight.grad.flatten().tolist()


@pytest.mark.parametrize("wire", [None, torch.bfloat16])
@pytest.mark.parametrize("watched", [False, True])
def test_hook_sees_own_gradients_and_averages_all(pair, wire, watched):
    meet = rendezvous()
    gradients_by_rank = pair.call(exchanged, (0, meet, wire, watched), (1, meet, wire, watched))
    assert gradients_by_rank == [([own] * 3 if watched else [], [1.5] * 3) for own in (1.0, 2.0)]


class Large(nn.Module):
    """A network whose gradients, 300 MB, are most of its memory."""

    def __init__(self, **shape):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 2**20), nn.ReLU(), nn.Linear(2**20, 10))

    def forward(self, images):
        outputs: Tensor = self.layers(images)
        return outputs


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_first_gradients_are_let_go_before_there_are_others():
    gpus = Processes(2, [{"CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(2)])
    config = {"model": {"name": f"{__name__}:Large"}, "trainable": {"window_s": 0.1}}
    meet = {"gang_id": (gang := rendezvous()), "rendezvous": gang}
    peaks_gb = []
    for _ in range(3):  # the first one also connects, which takes so long that the watchdog has let go by then
        answers = run_two(gpus, shares=(2, 2), device="cuda", config=config, **meet)
        assert [answer["status"] for answer in answers] == ["ok", "ok"], answers
        peaks_gb.append(answers[0]["metrics"]["peak_memory_gb"])
    gpus.close()
    assert max(peaks_gb) < 1.1 * min(peaks_gb), peaks_gb
