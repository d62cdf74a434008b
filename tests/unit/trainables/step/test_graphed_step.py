"""A captured step is the eager step; what a GPU is not needed for is in the others' tests."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.trainables.ranks import CONFIG, request, run
from trainables.optimizers import optimizers
from trainables.step.graphed_step import EAGER_STEPS, GraphedStep, stream_for
from trainables.step.precision import PRECISIONS
from trainables.step.strategies import Strategy
from trainables.step.training_step import TrainingStep

# torch 2.11 warns of itself when what was compiled is dropped
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


def step_of(module, name, precision, *, accum=1, device="cuda", captured=True):
    return (GraphedStep if captured else TrainingStep)(
        Strategy(forward=module, loss_scale=1 / (8 * accum)),
        optimizers.build(module, {"name": name}, lr=0.1, capturable=device == "cuda"),
        precision=PRECISIONS[precision],
        grad_accum_steps=accum,
        device=device,
    )


def minibatches():
    numbers = torch.Generator().manual_seed(3)
    while True:
        images, targets = torch.randn(8, 3, 4, 4, generator=numbers), torch.randint(5, (8,), generator=numbers)
        yield images.cuda(), targets.cuda()


def after_steps(name, precision, *, accum, captured, count):
    """Parameters, running statistics and the sum of losses, with a rate that changes before and after the capture."""
    torch.manual_seed(0)
    with stream_for("on", "cuda:0"):
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)).cuda()
        step, batches = step_of(module, name, precision, accum=accum, captured=captured), minibatches()
        for index in range(count):
            step(batches, 0.01 / (1 + index // 5))
        torch.cuda.synchronize()
        return [value.clone() for value in (*module.state_dict().values(), step.loss)]


EVERY_FUSED = list(itertools.product(("sgd", "adamw"), ("fp32", "bf16", "fp16"), (1, 3)))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "precision", "accum"), [*EVERY_FUSED, *((name, "fp32", 1) for name in ("lars", "lamb", "adadelta"))]
)
def test_captured_step_equals_the_eager_step(name, precision, accum):
    eager, captured = (
        after_steps(name, precision, accum=accum, captured=captured, count=EAGER_STEPS + 9)
        for captured in (False, True)
    )
    for one, other in zip(eager, captured, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)


GRAPHED = CONFIG["trainable"] | {"cuda_graph": "on"}


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{}, {"precision": "bf16", "memory_format": "channels_last"}])
def test_captured_trial_learns_the_same(settings):
    config = {
        "model": {"name": "small_cnn"},
        "data": {"name": "digits", "augment": {"crop_padding": 1, "cutout": 2}},
        "budget": {"epochs": 4},
    }
    plain, graphed = (
        run(request(config=config | {"trainable": step_settings | settings}, device="cuda", gpus_per_rank=1))
        for step_settings in (CONFIG["trainable"], GRAPHED)
    )
    assert (plain["status"], graphed["status"]) == ("ok", "ok"), graphed["trace"]
    for one, other in zip(plain["rows"], graphed["rows"], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=0.02)
        assert other["lr"] == one["lr"] and other["samples"] == one["samples"]
    assert graphed["reusable"]


@pytest.mark.gpu
def test_captured_language_model_learns_the_same_compiled(tmp_path):
    np.random.default_rng(0).integers(0, 64, 20_000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    config = {
        "model": {"name": "gpt", "layers": 2, "heads": 2, "width": 64, "vocabulary": 64, "sequence_length": 32},
        "data": {"name": "tokens", "path": str(tmp_path), "validation_tokens": 1024},
        "optimizer": {"name": "adamw"},
        "budget": {"steps": 40},
    }
    compiled = {"compile": "default", "clip_grad_norm": 1.0, "precision": "bf16"}
    plain, graphed = (
        run(request(config=config | {"trainable": step_settings | compiled}, lr=1e-3, device="cuda", gpus_per_rank=1))
        for step_settings in (CONFIG["trainable"], GRAPHED)
    )
    assert (plain["status"], graphed["status"]) == ("ok", "ok"), graphed["trace"]
    assert graphed["metrics"]["loss"] == pytest.approx(plain["metrics"]["loss"], rel=0.01)


def test_eager_steps_read_minibatches_from_the_places_of_the_capture():
    """Otherwise torch.compile meets other strides in the capture, and cannot compile for them there."""
    seen: list[tuple[int, tuple[int, ...]]] = []

    class Recorder(nn.Linear):
        def forward(self, inputs):
            seen.append((inputs.data_ptr(), inputs.stride()))
            return super().forward(inputs)

    step = step_of(Recorder(4, 2), "sgd", "fp32", accum=2, device="cpu")
    slices = ((torch.randn(8, 5)[:, 1:], torch.randint(2, (8,))) for _ in itertools.count())
    for _ in range(EAGER_STEPS):
        step(slices, 0.1)
    assert len(seen) == 2 * EAGER_STEPS and len(set(seen)) == 2
    assert {strides for _, strides in seen} == {(4, 1)}


@pytest.mark.gpu
def test_divergence_in_a_graph_is_detected():
    config = {"trainable": GRAPHED, "budget": {"steps": 60}}
    answer = run(request(config=config, lr=1e30, device="cuda", gpus_per_rank=1))
    assert answer["status"] == "diverged"


def test_cpu_refuses_cuda_graphs():
    answer = run(request(config={"trainable": GRAPHED}))
    assert answer["status"] == "failed" and "trainable.cuda_graph=on" in answer["note"]
    assert "trainable.cuda_graph 'fast'" in run(request(config={"trainable": GRAPHED | {"cuda_graph": "fast"}}))["note"]


def test_unfused_optimizer_with_fp16_is_not_captured():
    with pytest.raises(ValueError, match="cuda_graph=on .*precision=fp16 .*LARS"):
        step_of(nn.Linear(2, 2), "lars", "fp16", device="cpu")
    step_of(nn.Linear(2, 2), "sgd", "fp16", device="cpu")
    step_of(nn.Linear(2, 2), "lars", "bf16", device="cpu")
