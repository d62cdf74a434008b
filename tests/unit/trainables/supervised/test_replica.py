import itertools

import pytest
import torch
from torch import nn

from tests.unit.trainables.inputs.feeds import IMAGES, LABELS, form
from tests.unit.trainables.ranks import Processes, rendezvous
from trainables import process_group
from trainables.clock import Clock
from trainables.context import Context
from trainables.inputs.inputs import Part
from trainables.step.training_step import PRECISIONS, Objective
from trainables.supervised import replica
from trainables.supervised.replica import LonePasses


def test_it_tells_the_fastest_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "LEAST_S", 0.0)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(144, 50)).double()
    seen: list[int] = []
    model.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lengths = itertools.chain.from_iterable((0.0, second) for second in [9.0, 5.0, 2.0] + [3.0] * 7)
    clock = Clock("cpu", monotonic=itertools.accumulate(lengths).__next__)
    part = Part(images=IMAGES, targets=LABELS)
    timed = LonePasses(model, part, form=form(), precision=PRECISIONS["fp64"], clock=clock, objective=Objective())
    assert timed.pass_s(8) == pytest.approx(2.0)
    assert seen == [8] * (replica.WARMUP_PASSES + replica.LEAST_PASSES)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def take_passes(rank: int, meet: str) -> str:
    process_group.join(Context.alone(rank=rank, world_size=2, rendezvous=meet, gang_id=meet))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(144, 50)))
    part = Part(images=IMAGES, targets=LABELS)
    clock, objective = Clock("cpu"), Objective()
    one = LonePasses(model.double(), part, form=form(), precision=PRECISIONS["fp64"], clock=clock, objective=objective)
    for _ in range(1 + rank):
        one.take_pass(4)
    return type(model[0]).__name__ + str("forward" in vars(model[0]))


def test_its_passes_wait_for_no_other_rank(pair: Processes) -> None:
    """Whose own may be more, or fail: on a CPU, synchronised batch norm raises at once where it would wait."""
    meet = rendezvous()
    assert pair.call(take_passes, (0, meet), (1, meet)) == ["SyncBatchNormFalse"] * 2
