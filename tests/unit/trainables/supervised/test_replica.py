import copy
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.trainables.inputs.feeds import IMAGES, LABELS, form
from tests.unit.trainables.ranks import rendezvous
from trainables import process_group
from trainables.context import Context
from trainables.inputs.feed import Part
from trainables.step.objective import Objective
from trainables.step.precision import PRECISIONS
from trainables.supervised import replica
from trainables.supervised.replica import RankLocalPasses, ShapeMismatchError, as_shape_mismatch
from trainables.timed_window import Clock

WORKLOAD: Any = SimpleNamespace(
    split=SimpleNamespace(train=Part(images=IMAGES, targets=LABELS)), form=form(), precision=PRECISIONS["fp64"]
)


def test_fastest_pass_counts_and_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(replica, "MIN_S", 0.0)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(144, 50)).double()
    seen: list[int] = []
    model.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lengths = itertools.chain.from_iterable((0.0, second) for second in [9.0, 5.0, 2.0] + [3.0] * 7)
    clock = Clock("cpu", monotonic=itertools.accumulate(lengths).__next__)
    assert RankLocalPasses(model, WORKLOAD, clock=clock, objective=Objective()).pass_s(8) == pytest.approx(2.0)
    assert seen == [8] * (replica.WARMUP_PASSES + replica.MIN_PASSES)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def take_passes(rank, meet):
    process_group.join(Context.alone(rank=rank, world_size=2, rendezvous=meet, gang_id=meet))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(144, 50)))
    passes = RankLocalPasses(model.double(), WORKLOAD, clock=Clock("cpu"), objective=Objective())
    for _ in range(1 + rank):
        passes.take_pass(4)
    return type(model[0]).__name__ + str("forward" in vars(model[0]))


def test_rank_local_passes_do_not_communicate(pair):
    """Ranks take different numbers of passes. On a CPU synchronised batch norm raises at once if it is used."""
    meet = rendezvous()
    assert pair.call(take_passes, (0, meet), (1, meet)) == ["SyncBatchNormFalse"] * 2


@pytest.mark.parametrize(
    ("error", "raised", "copies"),
    [
        (torch.OutOfMemoryError("full"), torch.OutOfMemoryError, 0),
        (RuntimeError("mat1 and mat2 cannot be multiplied"), ShapeMismatchError, 1),
    ],
)
def test_a_model_is_copied_to_explain_an_error_unless_memory_is_full(monkeypatch, error, raised, copies):
    model, copied = nn.Linear(5, 2), []
    original = copy.deepcopy

    def deepcopy(value):
        copied.append(value)
        return original(value)

    monkeypatch.setattr(replica.copy, "deepcopy", deepcopy)
    with pytest.raises(raised), as_shape_mismatch(model, "mine", (3, 4, 4)):
        raise error
    assert sum(value is model for value in copied) == copies
