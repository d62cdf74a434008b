"""The bound on a rank's memory, in the words of torch.cuda; on a real device in the last test."""

import types

import pytest
import torch

from tests.unit.trainables.ranks import CONFIG, request, run
from trainables import device_memory


@pytest.fixture
def bounds(monkeypatch):
    """Those that were set on a device of 80 GB."""
    told: list[float] = []
    gb = 2**30
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(total_memory=80 * gb))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 19 * gb)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7 * gb)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: told.append(share))
    return told


def test_limit_leaves_room_for_memory_outside_the_allocator(bounds):
    device_memory.limit("cuda:0", 0.25)
    assert bounds == [19 / 80]
    assert device_memory.taken("cuda:0") == {"reserved_memory_gb": 20.0, "device_memory_gb": 80.0}


def test_next_trial_has_no_limit(bounds):
    device_memory.limit("cuda:0", None)
    assert bounds == [1.0]


def test_cpu_has_no_limit(bounds):
    device_memory.limit("cpu", 0.25)
    assert not bounds and device_memory.taken("cpu") == device_memory.peak("cpu") == {}


def test_peak_is_that_of_tensors(bounds):
    assert device_memory.peak("cuda:0") == {"peak_memory_gb": 7.0}


@pytest.mark.gpu
def test_trial_beyond_its_share_ends_as_oom():
    take_half = "tests.unit.trainables.polluters:take_half_of_the_gpu"
    short = run(request(take_half, device="cuda", gpus_per_rank=0.25, timing="shared"))
    assert short["status"] == "oom" and short["note"].startswith("in 0.25 of the GPU's memory: ")
    whole = run(request(take_half, device="cuda", gpus_per_rank=0.25))
    assert whole["status"] == "ok"
    assert whole["metrics"]["reserved_memory_gb"] > whole["metrics"]["device_memory_gb"] / 2


@pytest.mark.gpu
def test_every_epoch_reports_its_peak():
    answer = run(request(config={"budget": {"epochs": 2}}, device="cuda"))
    peaks = [row["peak_memory_gb"] for row in answer["rows"]]
    assert len(peaks) == 2 and 0 < peaks[0] <= peaks[1] <= answer["metrics"]["peak_memory_gb"]


@pytest.mark.gpu
def test_captured_trials_leave_no_memory_behind():
    asked = request(config={"trainable": CONFIG["trainable"] | {"cuda_graph": "on"}}, device="cuda")
    _, second, third, fourth = (run(asked)["metrics"]["peak_memory_gb"] for _ in range(4))
    assert second == pytest.approx(third, abs=1e-3) and third == pytest.approx(fourth, abs=1e-3)
