import builtins
from dataclasses import replace
from typing import cast
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from orchestrator.backends.backend import outcome_of
from sweeps.rank_exit import Cause
from sweeps.trial import Batch
from tests.unit.trainables.ranks import CONFIG, context_of, rendezvous, request, run, run_two, supervised_trial
from trainables import rank
from trainables.context import Context
from trainables.process_group import RankGroup
from trainables.step.shares import fitting, proportional, share_by_speed
from trainables.supervised import replica


@pytest.mark.parametrize(
    ("total", "speeds", "shares"),
    [
        (96, [2, 1], (64, 32)),
        (100, [1, 1, 1], (34, 33, 33)),
        (10, [100, 1, 1], (8, 1, 1)),
        (3, [5, 1, 1], (1, 1, 1)),
        (512, [300.5, 150.1], (341, 171)),
        (7, [1], (7,)),
        (49, [87290.0, 999999.9999999999, 1000000.0], (2, 23, 24)),  # nearly equal
    ],
)
def test_shares_by_hand(total, speeds, shares):
    assert proportional(total, speeds) == shares


def test_more_ranks_than_samples_is_an_error():
    with pytest.raises(ValueError, match="^2 samples .* 3 ranks"):
        proportional(2, [1, 1, 1])


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=8), st.integers(0, 5000))
def test_shares_are_complete_and_follow_speed(speeds, extra):
    total = len(speeds) + extra
    shares = proportional(total, speeds)
    assert sum(shares) == total and min(shares) >= 1
    for faster, slower in ((a, b) for a in range(len(speeds)) for b in range(len(speeds)) if speeds[a] > speeds[b]):
        assert shares[faster] >= shares[slower]
    if min(speeds) / sum(speeds) * total >= 1:
        exact = [total * speed / sum(speeds) for speed in speeds]
        assert all(abs(share - wanted) < 1.001 for share, wanted in zip(shares, exact, strict=True))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 20))
def test_whole_numbered_shares_are_exact(speeds, times):
    assert proportional(times * sum(speeds), speeds) == tuple(times * speed for speed in speeds)


class WithAFasterRank:
    """A gang of two, of which the other, rank 1, is three times as fast as this one."""

    rank = 0

    def each(self, speed):
        return (speed, 3 * speed)


def test_faster_rank_gets_a_larger_share():
    half = Batch(global_batch_size=96, grad_accum_steps=2, shares=(24, 24))
    context = Context.alone(world_size=2, batch=half)
    whole = Batch(global_batch_size=96, shares=(48, 48))
    share_by_speed(context, cast(RankGroup, WithAFasterRank()), pass_s=0.5, whole=whole)
    assert context.batch == Batch(global_batch_size=96, shares=(24, 72))
    assert context.metrics == {"shares": [24, 72], "rank_samples_per_s": [48.0, 144.0]}


ALONE = RankGroup(rank=0, world_size=1, device="cpu", gang_id="")


class Hungry(nn.Module):
    """Has memory for a limited number of samples a pass."""

    def __init__(self, features, classes, most):
        super().__init__()
        self.layer, self._most = nn.Linear(features, classes), most

    def forward(self, images):
        if len(images) > self._most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.layer(images.flatten(1))


def hungry(*, input_shape, num_classes, most=10**9):
    return Hungry(input_shape[1] * input_shape[2], num_classes, most)


def asked(most, micro_batch, share=96, accum=1):
    config = {
        "trainable": CONFIG["trainable"] | {"precision": "fp64", "micro_batch": micro_batch},
        "model": {"name": f"{__name__}:hungry", "most": most},
        "data": {"name": "digits", "augment": {"crop_padding": 1, "flip": True}},
    }
    return request(shares=(share,), grad_accum_steps=accum, config=config)


def trained(request):
    torch.manual_seed(1)
    context = context_of(request)
    trial = supervised_trial(request, context)
    trial.train()
    return list(trial.replica.model.parameters()), context.metrics


@pytest.mark.parametrize("accum", [1, 2])
def test_smaller_passes_make_the_same_update(accum):
    whole, metrics = trained(asked(10**9, "off", accum=accum))
    parts, same = trained(asked(30, "auto", accum=accum))
    assert same["micro_batch_size"] == 24 and "micro_batch_size" not in metrics
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(other, one, atol=1e-10, rtol=0)
    assert same["loss"] == pytest.approx(metrics["loss"], abs=1e-10)


def test_evaluation_batch_shrinks_to_fit_memory():
    parts, whole = run(asked(30, "auto"))["metrics"], run(asked(10**9, "auto"))["metrics"]
    assert (parts["accuracy"], parts["val_accuracy"]) == (whole["accuracy"], whole["val_accuracy"])
    assert parts["val_loss"] == pytest.approx(whole["val_loss"], abs=1e-10)


def test_batch_that_fits_is_one_pass():
    assert run(asked(96, "auto"))["metrics"]["micro_batch_size"] == 96


def test_oom_when_off_or_with_single_samples():
    assert run(asked(30, "off"))["status"] == "oom"
    assert run(asked(0, "auto"))["status"] == "oom"


@pytest.mark.parametrize(
    ("shares", "most", "passes", "smaller"),
    [
        ((8, 8), 8, 1, (8, 8)),
        ((8, 8), 7, 2, (4, 4)),
        ((12, 6), 4, 3, (4, 2)),
        ((15, 45), 8, 3, (5, 15)),
        ((15, 45), 2, 15, (1, 3)),
        # Shares without a common divisor keep their proportions.
        ((13, 35), 7, 2, (7, 17)),
        ((26, 70), 9, 3, (9, 23)),
        ((2, 45), 1, 47, None),
        ((7, 41), 1, 6, (1, 7)),
        ((3, 5), 1, 4, (1, 1)),
    ],
)
def test_number_of_passes_is_the_fewest_that_fit(shares, most, passes, smaller):
    def take_pass(samples):
        if samples > most:
            raise MemoryError

    batch = Batch(global_batch_size=2 * sum(shares), grad_accum_steps=2, shares=shares)
    if smaller is None:
        with pytest.raises(MemoryError):
            fitting(batch, ALONE, take_pass)
        return
    fitted = fitting(batch, ALONE, take_pass)
    assert (fitted.grad_accum_steps, fitted.shares) == (2 * passes, smaller)
    assert sum(fitted.shares) * fitted.grad_accum_steps == fitted.global_batch_size


def weights(request):
    parameters, metrics = trained(request)
    return torch.cat([parameter.detach().flatten() for parameter in parameters]).tolist(), metrics["micro_batch_size"]


def test_unequal_ranks_with_new_shares_match_one(pair):
    rank_group = {"shares": (29, 31), "rendezvous": rendezvous(), "gang_id": "shared anew"}
    config = asked(20, "auto").trial.config
    ranks = pair.call(weights, *((request(config=config, rank=rank, **rank_group),) for rank in (0, 1)))
    whole, _ = weights(asked(10**9, "auto", share=60))
    for theirs, samples in ranks:
        assert samples == 15 and theirs == pytest.approx(whole, abs=1e-10)


def shares_told(request):
    def by_speed(context, rank_group, pass_s, whole):
        assert context.batch.shares == (15, 15)  # what is timed must fit
        context.batch = replace(whole, shares=(14, 46))

    with patch.object(replica, "share_by_speed", by_speed):
        shares: list[int] = trained(request)[1]["shares"]
    return shares


@pytest.mark.slow
def test_shares_by_speed_are_fitted_to_memory_before_and_after(pair):
    rank_group = {"shares": (30, 30), "strategy": "ddp_unequal", "rendezvous": rendezvous(), "gang_id": "told"}
    config = asked(20, "auto").trial.config
    asks = [request(config=config, rank=rank, **rank_group) for rank in (0, 1)]
    told, same = pair.call(shares_told, *((rank_request,) for rank_request in asks))
    assert told == same == [15, 45]  # three passes of 5 and 15, where equal shares were halved


def test_another_ranks_memory_counts_and_other_errors_raise():
    class Pair(RankGroup):
        def largest(self, *values):
            return (float(bool(needs.pop())),)

        def rank_local(self, work):
            return work()

    pair, needs = Pair(rank=0, world_size=2, device="cpu", gang_id=""), [False, True, True]
    batch = Batch(global_batch_size=32, shares=(16, 16))
    assert fitting(batch, pair, lambda samples: None).shares == (4, 4)

    tried: list[int] = []

    def broken(samples):
        tried.append(samples)
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        fitting(batch, ALONE, broken)
    assert tried == [16]


class Torn(Hungry):
    """Fails in each pass of one of its processes."""

    def __init__(self, inputs, classes, error):
        super().__init__(inputs, classes, 10**9)
        self._error = error

    def forward(self, images):
        if dist.get_rank() == 1:
            raise self._error("something else")
        return super().forward(images)


def torn(*, input_shape, num_classes, error):
    return Torn(input_shape[1] * input_shape[2], num_classes, vars(builtins)[error])


def ended(request):
    return rank.run(request, lambda row: None, lambda: False)


@pytest.mark.parametrize(("error", "cause"), [("RuntimeError", Cause.ERROR), ("MemoryError", Cause.HOST_MEMORY)])
def test_error_in_one_ranks_pass_ends_the_gang_with_its_message(pair, error, cause):
    config = asked(20, "auto").trial.config | {"model": {"name": f"{__name__}:torn", "error": error}}
    rank_group = {"shares": (30, 30), "rendezvous": rendezvous(), "gang_id": error}
    waits, broke = pair.call(ended, *((request(config=config, rank=rank, **rank_group),) for rank in (0, 1)))
    assert waits.note.startswith("ConnectionAbortedError: ")
    outcome = outcome_of([waits, broke], names=["rank 0", "rank 1"], wall_s=1.0)
    assert outcome.cause is cause
    assert outcome.note.startswith("rank 1: ") and f"{error}: something else" in outcome.note


def test_first_independent_model_equals_a_single_trial(pair):
    sections = {"budget": {"epochs": 2}, "data": {"name": "digits", "augment": {"flip": True}}}
    alone = run(request(shares=(64,), config=sections))["metrics"]
    answers = run_two(pair, shares=(64, 64), strategy="independent", config=sections)
    assert all(answer["status"] == "ok" for answer in answers), answers[0]["trace"]
    metrics = answers[0]["metrics"]
    for figure in ("accuracy", "val_accuracy", "val_loss", "steps"):
        assert metrics[figure] == alone[figure]
    assert metrics["samples"] == 2 * alone["samples"]
    assert metrics["samples_per_s"] == pytest.approx(128 * metrics["window_steps"] / metrics["window_s"])
    first, second = metrics["replica_accuracies"]
    assert first == alone["accuracy"] and second != first
    assert answers[0]["note"].startswith("2 independent models") and f"{second:.4f}" in answers[0]["note"]
    assert answers[1]["metrics"]["val_loss"] != metrics["val_loss"] and answers[1]["rows"] == []


def test_independent_with_one_rank_is_single():
    settings = CONFIG | {"budget": {"steps": 5}}
    answers = [run(request(strategy=strategy, config=settings)) for strategy in ("single", "independent")]
    assert answers[0]["metrics"]["loss"] == answers[1]["metrics"]["loss"] and answers[1]["note"] == ""


def test_independent_models_share_no_batch_norm(pair):
    sections = {"model": {"name": "resnet9", "batch_norm": "sync"}}
    answers = run_two(pair, shares=(8, 8), strategy="independent", config=sections)
    notes = [answer["note"] for answer in answers]
    assert all("batch_norm=sync" in note and "strategy=independent" in note for note in notes), notes
