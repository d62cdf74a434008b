"""A rehearsal: rank 0 alone takes real steps in any layout; its figures are those of a trial."""

import os
import socket
import sys
from multiprocessing.connection import Pipe

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from sweeps.trial import ALONE
from tests.unit.trainables.ranks import request, run
from trainables import process_group
from trainables.context import Context
from trainables.step.strategies import Exchange, register_hook
from trainables.supervised import rehearsal
from trainables.supervised.rehearsal import MemoryPeaks, take_gb

FIGURES = {
    *("setup_s", "first_step_s", "step_s", "device_step_s", "validation_s", "test_s"),
    *("batch", "epoch_samples", "n_params", "is_alone", "gathered_gb", "exchanged_gb", "overlaps"),
}


def rehearsed(**asked):
    place = {"rendezvous": ALONE, "gang_id": ALONE}
    return run(request("trainables.supervised.rehearsal:rehearse", **place | asked))


@pytest.fixture(autouse=True)
def leave():
    yield
    process_group.leave()


@pytest.mark.parametrize(
    ("strategy", "ranks", "fsdp_size", "is_alone"),
    [
        ("single", 1, None, False),
        ("ddp", 2, None, True),
        ("ddp_unequal", 2, None, True),
        ("independent", 2, None, False),
        ("fsdp", 8, None, True),
        ("fsdp_grad", 4, 2, True),
    ],
)
def test_any_layout_is_rehearsed_by_one_process(strategy, ranks, fsdp_size, is_alone):
    answer = rehearsed(shares=(32,) * ranks, strategy=strategy, fsdp_size=fsdp_size)
    assert answer["status"] == "ok", answer["trace"]
    figures = answer["metrics"]
    assert set(figures) == FIGURES
    assert figures["is_alone"] == is_alone and figures["n_params"] == 1210
    assert figures["exchanged_gb"] == pytest.approx(1210 * 4 / 2**30)
    assert figures["gathered_gb"] == (figures["exchanged_gb"] if strategy.startswith("fsdp") else 0)
    assert 0 < figures["step_s"] < 5 and figures["validation_s"] > 0


def test_other_ranks_need_not_be_there_afterwards():
    assert rehearsed(shares=(32,) * 4, strategy="fsdp")["status"] == "ok"
    assert dist.get_backend() == "fake"
    assert run(request())["status"] == "ok"
    assert not dist.is_initialized()


def test_hybrid_sharding_updates_its_parameters():
    states: list[int] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: states.append(len(optimizer.state)))
    try:
        assert rehearsed(shares=(8,) * 4, strategy="fsdp", fsdp_size=2)["status"] == "ok"
    finally:
        hook.remove()
    assert states and all(states)


def test_a_branch_is_rehearsed_without_its_base():
    config = {"trainable": {"branch_base": "another", "branch_tokens": 8, "branch_window_tokens": 8}}
    assert rehearsed(config=config)["status"] == "ok"


@pytest.mark.parametrize("wire", [None, torch.bfloat16])
def test_ddp_keeps_its_own_gradients_in_a_rehearsal(wire):
    context = Context.alone(rendezvous=ALONE, gang_id=ALONE, world_size=4)
    process_group.join(context)
    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 2), torch.randn(5, 3)
    model(inputs).square().sum().backward()
    own = model.weight.grad.clone()
    model.zero_grad()
    parallel = DistributedDataParallel(model)
    register_hook(parallel, Exchange(wire=wire))
    parallel(inputs).square().sum().backward()
    assert torch.equal(model.weight.grad, own if wire is None else own.to(wire).float())


def test_peaks_end_where_updates_begin_and_end(monkeypatch):
    peaks_gb = iter([5.0, 7.0, 4.0, 9.0])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(peaks_gb) * 2**30)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    peaks = MemoryPeaks(take_gb)
    weight = nn.Parameter(torch.ones(2**20))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    with peaks.watched():
        for _ in range(2):
            weight.grad = torch.ones(2**20)
            optimizer.step()
    optimizer.step()  # is not watched any more
    assert peaks.gb == {"passes": 5.0, "update": 9.0}
    assert peaks.optimizer_gb == pytest.approx(4 / 2**10)


def test_the_process_answers_each_request(monkeypatch):
    here, there = Pipe()
    for shares in (64, 10**6):
        here.send(request("trainables.supervised.rehearsal:rehearse", shares=(shares,)))
    with socket.socket(fileno=os.dup(here.fileno())) as requests:
        requests.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(sys, "argv", ["rehearsal", str(os.dup(there.fileno()))])
    rehearsal.main()
    first, second = here.recv(), here.recv()
    assert first["status"] == "ok" and first["figures"]["step_s"] > 0 and first["took_s"] > 0
    assert second["status"] == "failed" and "1000000" in second["note"] and second["figures"] == {}


def test_a_lack_of_memory_is_an_answer(monkeypatch):
    def no_memory(self):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("trainables.supervised.loop.Loop.step", no_memory)
    assert rehearsed()["status"] == "oom"
