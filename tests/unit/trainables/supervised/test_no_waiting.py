"""Within an epoch the host waits for nothing that the device computes: it looks between steps, not in one."""

import warnings
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.trainables.ranks import CONFIG, request, supervised_trial
from trainables.step.graphed_step import EAGER_STEPS, stream_for
from trainables.step.training_step import TrainingStep
from trainables.supervised.loop import Loop

INPUTS = ["resident", "loader"]
FIRST = EAGER_STEPS + 2
"""Steps that may wait: cuDNN and capture settle in them, and workers start."""
READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
}
"""What asks for values, or for how many there are: a GPU's would have to be waited for."""


class WaitedError(AssertionError):
    """The host asked for what the device had still to do."""


class Unread(TorchDispatchMode):
    """Raises where values are read."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in READS:
            raise WaitedError(f"a step reads by {func}")
        return func(*args, **(kwargs or {}))


def wait(*given):
    raise WaitedError("a step waits for the device")


@contextmanager
def no_waiting(device):
    """WaitedError, or torch's own RuntimeError, where the host waits for the device."""
    with pytest.MonkeyPatch.context() as patch:
        for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
            patch.setattr(owner, "synchronize", wait)
        if device == "cpu":  # which nobody has to wait for: what would be read of a GPU is
            with Unread():
                yield
            return
        before = torch.cuda.get_sync_debug_mode()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
                torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def trained(monkeypatch, source, device, **settings):
    """Train for four epochs without waiting in a step; how many were watched."""
    config = {
        "trainable": CONFIG["trainable"] | {"input": source, "loader": {"workers": 1}} | settings,
        "model": {"name": "small_cnn"},
        "data": {"name": "digits", "augment": {"crop_padding": 1, "flip": True, "cutout": 2}},
        "budget": {"epochs": 4},
    }
    steps, take = 0, Loop.step

    def watched(loop):
        nonlocal steps
        steps += 1
        with no_waiting(device) if steps > FIRST else nullcontext():
            take(loop)

    monkeypatch.setattr(Loop, "step", watched)
    asked = request(config=config, device=device, gpus_per_rank=0 if device == "cpu" else 1)
    with stream_for(config["trainable"].get("cuda_graph", "off"), device):
        trial = supervised_trial(asked)
        try:
            trial.train()
        finally:
            trial.close()
    return steps - FIRST


@pytest.mark.parametrize("source", ["resident", pytest.param("loader", marks=pytest.mark.slow)])
def test_step_reads_no_value(monkeypatch, source):
    assert trained(monkeypatch, source, "cpu") > 50


def read_the_loss(monkeypatch):
    update = TrainingStep.update

    def and_read(step, batches):
        update(step, batches)
        step.loss.item()

    monkeypatch.setattr(TrainingStep, "update", and_read)


def test_step_that_reads_its_loss_is_detected(monkeypatch):
    read_the_loss(monkeypatch)
    with pytest.raises(WaitedError, match="_local_scalar_dense"):
        trained(monkeypatch, "resident", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", ["off", "on"])
@pytest.mark.parametrize("source", INPUTS)
def test_step_does_not_wait_for_the_gpu(monkeypatch, source, cuda_graph):
    assert trained(monkeypatch, source, "cuda", cuda_graph=cuda_graph) > 50


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{"precision": "bf16", "memory_format": "channels_last"}, {"precision": "tf32"}])
def test_step_does_not_wait_in_other_precisions(monkeypatch, settings):
    assert trained(monkeypatch, "resident", "cuda", **settings) > 50


@pytest.mark.gpu
def test_wait_for_the_gpu_is_detected(monkeypatch):
    read_the_loss(monkeypatch)
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        trained(monkeypatch, "resident", "cuda")
