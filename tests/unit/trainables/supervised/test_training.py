"""The oracle of every strategy: the update is that of a single process with the whole batch."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.trainables.ranks import (
    CONFIG,
    context_of,
    fields_of,
    rendezvous,
    request,
    run,
    run_two,
    supervised_trial,
    without_times,
)
from trainables import rank
from trainables.supervised.replica import Replica

EXACT = {
    "trainable": CONFIG["trainable"] | {"precision": "fp64"},
    "data": {"name": "digits", "augment": {"crop_padding": 1, "flip": True, "cutout": 2}},
}


def trained(asked, replica_type=Replica):
    """Return all parameters after the training, and what it summarized; threads and seeds are as the rank sets them."""
    context = context_of(asked)
    torch.manual_seed(context.seed)
    torch.set_num_threads(context.threads)
    trial = supervised_trial(asked, context, replica_type=replica_type)
    trial.train()
    trial.evaluate()
    return [parameter.detach().flatten().tolist() for parameter in trial.replica.model.parameters()], context.metrics


@pytest.fixture(scope="module")
def alone():
    return trained(request(shares=(120,), config=EXACT))


@pytest.mark.parametrize(("shares", "grad_accum_steps"), [((60, 60), 1), ((77, 43), 1), ((20, 20), 3), ((25, 5), 4)])
def test_two_ranks_match_one(pair, alone, shares, grad_accum_steps):
    batch = {"shares": shares, "grad_accum_steps": grad_accum_steps, "config": EXACT, "rendezvous": rendezvous()}
    results = pair.call(trained, *((request(rank=rank, gang_id=str(batch), **batch),) for rank in range(2)))
    parameters, metrics = alone
    for theirs, summary in results:
        for one, two in zip(parameters, theirs, strict=True):
            assert two == pytest.approx(one, abs=1e-10, rel=0)
        assert summary["loss"] == pytest.approx(metrics["loss"], abs=1e-10)
        assert summary["val_loss"] == pytest.approx(metrics["val_loss"], abs=1e-10)
        assert (summary["accuracy"], summary["val_accuracy"]) == (metrics["accuracy"], metrics["val_accuracy"])


@pytest.mark.parametrize(
    ("train", "shares", "accum", "epochs"),
    [
        (100, (64,), 1, 3),
        (100, (100,), 1, 2),
        (100, (17,), 3, 3),
        (128, (64,), 1, 2),
        (100, (64,), 1, 0.5),
        (100, (40, 33), 1, 3),
        (90, (7, 5), 4, 1),
    ],
)
def test_trial_trains_its_budget_within_a_batch(pair, train, shares, accum, epochs):
    config = {
        "trainable": CONFIG["trainable"] | {"val_fraction": 0.0},
        "data": {"name": "digits", "subset": {"train": train, "test": 10}},
        "budget": {"epochs": epochs},
    }
    batch: dict[str, Any] = {"shares": shares, "grad_accum_steps": accum, "config": config}
    answer = run(request(**batch)) if len(shares) == 1 else run_two(pair, **batch)[0]
    assert answer["status"] == "ok", answer["trace"]
    metrics, size = answer["metrics"], sum(shares) * accum
    assert epochs * train <= metrics["samples"] == metrics["steps"] * size < epochs * train + size
    for row in answer["rows"]:
        asked = min(epochs, row["epoch"]) * train
        assert asked <= row["samples"] < asked + size
    assert metrics["epochs"] == pytest.approx(min(math.ceil(epochs), metrics["samples"] / train))
    assert metrics["epoch_s"] * metrics["samples_per_s"] == pytest.approx(train)


def test_an_accuracy_is_the_share_of_so_many_samples(alone):
    metrics = alone[1]
    for accuracy, samples in (("accuracy", "test_samples"), ("val_accuracy", "val_samples")):
        hits = metrics[accuracy] * metrics[samples]
        assert metrics[samples] > 1 and hits == pytest.approx(round(hits), abs=1e-6)


def test_accumulation_in_one_rank_matches_one_pass(alone):
    parameters, _ = trained(request(shares=(30,), grad_accum_steps=4, config=EXACT))
    for one, other in zip(alone[0], parameters, strict=True):
        assert other == pytest.approx(one, abs=1e-10, rel=0)


def test_two_ranks_report_one_trial(pair):
    answers = run_two(pair, shares=(32, 32))
    assert [answer["status"] for answer in answers] == ["ok", "ok"], answers[0]["trace"] + answers[1]["trace"]
    assert answers[0]["metrics"] == answers[1]["metrics"]
    assert answers[0]["metrics"]["samples"] == 20 * 64 and answers[1]["rows"] == []


def test_batch_norm_over_ranks_needs_gpus(pair):
    config = {"model": {"name": "resnet9", "batch_norm": "sync"}}
    for answer in run_two(pair, shares=(8, 8), config=config):
        assert answer["status"] == "failed" and "batch_norm=sync" in answer["note"]


HALF = [pytest.param(precision, marks=pytest.mark.slow) for precision in ("bf16", "fp16")]


@pytest.mark.parametrize("precision", [*HALF, "fp64"])
def test_every_precision_of_the_cpu_learns(precision):
    settings = CONFIG["trainable"] | {"precision": precision, "memory_format": "channels_last"}
    few = {"name": "digits", "subset": {"train": 250, "test": 100}}  # of which fp16 takes ten times as long as others
    sections = {"trainable": settings, "model": {"name": "small_cnn"}, "data": few, "budget": {"epochs": 4}}
    answer = run(request(config=sections))
    assert answer["status"] == "ok", answer["trace"]
    assert answer["metrics"]["accuracy"] > 0.3


def with_five_outputs(*, input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))


class Twofold(nn.Linear):
    def forward(self, images):
        return super().forward(images.flatten(1)), None


def with_two_results(*, input_shape, num_classes):
    return Twofold(64, num_classes)


def of_colours(*, input_shape, num_classes):
    return nn.Sequential(nn.Conv2d(3, num_classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def of_tokens(*, input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Embedding(256, num_classes))


class Brittle(nn.Linear):
    def forward(self, images):
        if torch.is_grad_enabled():
            raise RuntimeError("on fire")
        return super().forward(images.flatten(1))


def brittle(*, input_shape, num_classes):
    return Brittle(64, num_classes)


@pytest.mark.parametrize(
    ("section", "values", "note"),
    [
        ("trainable", {"precision": "fp8"}, "trainable.precision 'fp8'"),
        ("trainable", {"precision": "tf32"}, "precision=tf32"),
        ("trainable", {"compile": "fast"}, "trainable.compile 'fast'"),
        ("trainable", {"val_fraction": 1.5}, "val_fraction=1.5"),
        ("trainable", {"window_steps": 0}, "trainable.window_steps=0"),
        ("budget", {"epochs": 1, "steps": 3}, "exactly one of"),
        ("budget", {"steps": 0}, "budget.steps=0"),
        ("data", {"name": "digits", "augment": {"crop_padding": -1}}, "data.augment.crop_padding=-1"),
        ("data", {"name": "digits", "augment": {"cutout": 2.5}}, "data.augment.cutout=2.5"),
        ("data", {"name": "digits", "augment": {"rotate": 5}}, "data.augment has no key rotate"),
        ("model", {"name": "studies.models:unet", "depth": 1, "width": 2}, "the model returns 64×10×8×8"),
        ("model", {"name": f"{__name__}:with_five_outputs"}, "the model returns 64×5"),
        ("model", {"name": f"{__name__}:of_colours"}, "N×1×8×8"),
        ("model", {"name": f"{__name__}:of_tokens"}, "(RuntimeError: Expected tensor"),
        ("model", {"name": f"{__name__}:brittle"}, "RuntimeError: on fire"),
        ("model", {"name": f"{__name__}:with_two_results"}, "returns a tuple"),
    ],
)
def test_wrong_config_is_named(section, values, note):
    answer = run(request(config={section: values}))
    assert answer["status"] == "failed" and note in answer["note"]


@pytest.mark.parametrize(("model", "note"), [("with_five_outputs", "model returns 64×5"), ("of_colours", "N×1×8×8")])
def test_shape_mismatch_in_passes_before_training_is_named(model, note):
    config = {"model": {"name": f"{__name__}:{model}"}, "trainable": CONFIG["trainable"] | {"micro_batch": "auto"}}
    answer = run(request(config=config))
    assert answer["status"] == "failed" and note in answer["note"]


def test_batch_larger_than_the_data_fails():
    note = run(request(shares=(2000,)))["note"]
    assert "global_batch_size=2000" in note and "1293" in note


def test_stop_request_ends_early_with_results():
    rows: list[dict[str, Any]] = []
    answer = fields_of(rank.run(request(), rows.append, lambda: True))
    assert answer["status"] == "ok" and answer["metrics"]["steps"] == 1 and "samples_per_s" not in answer["metrics"]


def test_timing_changes_no_result():
    longer = CONFIG["trainable"] | {"window_steps": 30}
    assert without_times(run(request())) == without_times(run(request(config={"trainable": longer})))


def test_time_to_target_excludes_evaluation():
    for metric, value, higher_is_better in (("val_accuracy", 0.05, True), ("val_loss", 9.0, False)):
        target = {"metric": metric, "value": value, "higher_is_better": higher_is_better}
        metrics = run(request(config={"report": {"target": target}, "budget": {"epochs": 1}}))["metrics"]
        assert metrics["time_to_target_s"] == metrics["first_epoch_s"]
    assert "time_to_target_s" not in run(request())["metrics"]


@pytest.mark.parametrize(("bound", "status"), [(0.999, "skipped"), (0.0, "ok")])
def test_poor_trial_is_given_up_before_timing(bound, status):
    settings = CONFIG["trainable"] | {"give_up_below": bound}
    answer = run(request(config={"trainable": settings}))
    assert answer["status"] == status and answer["reusable"], answer["trace"]
    assert ("samples_per_s" in answer["metrics"]) == ("accuracy" in answer["metrics"]) == (status == "ok")
    if status == "skipped":
        assert answer["note"].startswith("early stop: val_accuracy 0.") and answer["trace"] == ""
        assert answer["metrics"]["val_accuracy"] < 0.999
