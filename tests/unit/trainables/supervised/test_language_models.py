"""Language models in the training loop: the same losses for every layout, and figures in tokens."""

import math
from typing import Any

import numpy as np
import pytest

from tests.unit.trainables.ranks import request, run, run_two

STEPS, LENGTH, BATCH = 6, 16, 8
CONFIG: dict[str, Any] = {
    "model": {"name": "gpt", "layers": 2, "heads": 2, "width": 16, "sequence_length": LENGTH, "vocabulary": 64},
    "optimizer": {"name": "adamw", "weight_decay": 0.1},
    "schedule": {"name": "cosine", "warmup": 0.3},
    "budget": {"tokens": STEPS * LENGTH * BATCH},
}
SETTINGS = {"window_s": 0.01, "window_steps": 2, "warmup_steps": 1, "warmup_s": 0.0, "clip_grad_norm": 0.1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    draw = np.random.default_rng(0)
    draw.integers(0, 64, 200 * LENGTH + 1, dtype=np.uint16).tofile(folder / "train.bin")
    draw.integers(0, 64, 24 * LENGTH + 1, dtype=np.uint16).tofile(folder / "val.bin")
    return {"name": "tokens", "path": str(folder), "epoch_tokens": 2 * LENGTH * BATCH, "bytes_per_token": 4.0}


def losses(answer):
    assert answer["status"] == "ok", answer["trace"]
    return [row[key] for row in answer["rows"] for key in ("loss", "val_loss")]


def test_losses_are_those_of_one_rank_for_every_layout(data, pair):
    def config(**settings):
        return CONFIG | {"data": data, "trainable": SETTINGS | settings}

    plain = losses(run(request(shares=(BATCH,), config=config())))
    assert len(plain) == STEPS and plain == pytest.approx([math.log(64)] * STEPS, rel=0.05)
    others = {
        "accumulated": run(request(shares=(BATCH // 4,), grad_accum_steps=4, config=config())),
        "recomputed": run(request(shares=(BATCH,), config=config(activation_checkpointing="full"))),
        "two ranks": run_two(pair, shares=(BATCH // 2,) * 2, config=config())[0],
        "unequal ranks": run_two(pair, shares=(1, 3), grad_accum_steps=2, config=config())[0],
    }
    for name, answer in others.items():
        assert losses(answer) == pytest.approx(plain, rel=1e-5), name


@pytest.mark.slow
def test_layouts_drift_apart_only_by_rounding(data, pair):
    """In float32 the losses of 96 steps differ by up to 5e-4: sums of gradients are rounded in another order."""
    config = CONFIG | {"data": data, "trainable": SETTINGS | {"precision": "fp64"}, "budget": {"steps": 96}}
    lr = 0.01  # at 0.05 this training is chaotic: a difference grows by an order of magnitude a step
    plain = losses(run(request(lr=lr, shares=(BATCH,), config=config)))
    two = losses(run_two(pair, lr=lr, shares=(BATCH // 2,) * 2, config=config)[0])
    accumulated = losses(run(request(lr=lr, shares=(BATCH // 4,), grad_accum_steps=4, config=config)))
    assert len(plain) == 96
    assert two == pytest.approx(plain, rel=1e-11) and accumulated == pytest.approx(plain, rel=1e-11)


def test_figures_are_in_tokens(data):
    answer = run(request(shares=(BATCH,), config=CONFIG | {"data": data, "trainable": SETTINGS}))
    metrics, last = answer["metrics"], answer["rows"][-1]
    assert metrics["steps"] == STEPS and metrics["sequence_length"] == LENGTH
    assert metrics["tokens"] == last["tokens"] == STEPS * LENGTH * BATCH
    assert [row["tokens"] for row in answer["rows"]] == [2 * LENGTH * BATCH * epoch for epoch in (1, 2, 3)]
    assert last["bits_per_byte"] == pytest.approx(last["val_loss"] / math.log(2) / 4)
    assert "accuracy" not in metrics and 0 <= metrics["val_accuracy"] < 0.2 and metrics["mfu"] > 0


def test_a_trial_that_is_only_timed_says_how_long_sequences_are(data):
    settings = SETTINGS | {"only_timed": True}
    answer = run(request(shares=(BATCH,), config=CONFIG | {"data": data, "trainable": settings}))
    assert answer["metrics"]["sequence_length"] == LENGTH and answer["metrics"]["samples_per_s"] > 0


def test_clipping_bounds_what_a_step_changes(data):
    def last_loss(most):
        settings = SETTINGS | {"clip_grad_norm": most}
        optimizer = {"name": "sgd"}
        answer = run(
            request(shares=(BATCH,), config=CONFIG | {"data": data, "trainable": settings, "optimizer": optimizer})
        )
        return float(answer["rows"][-1]["loss"])

    assert last_loss(1e-9) == pytest.approx(last_loss(1e-8), abs=1e-6)
    assert abs(last_loss(1e-9) - last_loss(None)) > 1e-4 and last_loss(1e9) == last_loss(None)


def test_a_loss_that_is_not_finite_has_diverged(data):
    optimizer = {"name": "sgd"}
    settings = SETTINGS | {"clip_grad_norm": None}
    answer = run(
        request(shares=(BATCH,), lr=1e30, config=CONFIG | {"data": data, "trainable": settings, "optimizer": optimizer})
    )
    assert answer["status"] == "diverged"


def test_muon_trains(tmp_path):
    np.arange(4000, dtype=np.uint16).__mod__(7).astype(np.uint16).tofile(tmp_path / "train.bin")
    config = CONFIG | {
        "data": {"name": "tokens", "path": str(tmp_path)},
        "trainable": SETTINGS,
        "optimizer": {"name": "muon"},
        "budget": {"steps": 60},
    }
    answer = run(request(shares=(BATCH,), lr=0.01, config=config))
    assert answer["status"] == "ok", answer["trace"]
    assert answer["rows"][-1]["val_loss"] < math.log(64) / 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch, about its own code
def test_a_compiled_model_has_the_same_losses(data):
    def llama_losses(**settings):
        model = CONFIG["model"] | {"name": "llama"}
        config = CONFIG | {"data": data, "model": model, "trainable": SETTINGS | settings}
        return losses(run(request(shares=(BATCH,), config=config)))

    assert llama_losses(compile="blocks", activation_checkpointing="full") == pytest.approx(llama_losses(), rel=1e-5)
