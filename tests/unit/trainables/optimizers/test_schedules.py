import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.lr_rule import LearningRate
from sweeps.trial import Batch
from tests.unit.trainables.ranks import CONFIG, request, run, run_two
from trainables.optimizers.schedules import Growth, resolve
from trainables.supervised.loop import Progress, TrainingLength, TrainingPlan

STEP = {"name": "step", "milestones": [0.5, 0.8], "gamma": 0.1}
COSINE = {"name": "cosine", "final": 0.1}
ONECYCLE = {"name": "onecycle", "peak": 0.25, "initial": 0.2, "final": 0.0}
EVERY = [{"name": "constant"}, STEP, COSINE, ONECYCLE]


@pytest.mark.parametrize(
    ("config", "position", "expected"),
    [
        ({"name": "constant"}, 77, 1.0),
        (STEP, 0, 1.0),
        (STEP, 49.999, 1.0),
        (STEP, 50, 0.1),
        (STEP, 79.999, 0.1),
        (STEP, 80, 0.01),
        (STEP, 100, 0.01),
        (COSINE, 0, 1.0),
        (COSINE, 50, 0.55),
        (COSINE, 100 / 3, 0.1 + 0.9 * 0.75),
        (COSINE, 100, 0.1),
        (COSINE, 130, 0.1),
        (ONECYCLE, 0, 0.2),
        (ONECYCLE, 12.5, 0.6),
        (ONECYCLE, 25, 1.0),
        (ONECYCLE, 62.5, 0.5),
        (ONECYCLE, 100, 0.0),
    ],
)
def test_hand_computed_factors(config, position, expected):
    assert resolve(config)(position, 100) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("config", "factors"),
    [
        ({"name": "step", "milestones": [0.5]}, [1.0, 1.0, 0.1, 0.1]),
        ({"name": "increase_batch", "milestones": [0.5]}, [1.0, 1.0, 1.0, 1.0]),
        ({"name": "cosine"}, [1.0, math.cos(0.15 * math.pi) ** 2, 0.5, 0.0]),
        ({"name": "onecycle"}, [0.1, 1.0, 5 / 7, 0.0]),
    ],
)
def test_defaults_are_as_documented(config, factors):
    assert [resolve(config)(position, 100) for position in (0, 30, 50, 100)] == pytest.approx(factors, abs=1e-12)


@given(epochs=st.integers(1, 1000), samples=st.integers(1, 10**7))
def test_milestones_fall_on_whole_epochs(epochs, samples):
    """The recipe of E1 divides the rate by 10 after half and four fifths of the epochs, for any size of an epoch."""
    length = 10 * epochs * samples
    assert [resolve(STEP)(epoch * epochs * samples, length) for epoch in (4, 5, 7, 8)] == pytest.approx(
        [1, 0.1, 0.1, 0.01]
    )


@given(config=st.sampled_from(EVERY), share=st.floats(0, 2), length=st.floats(1, 1e12))
def test_factors_depend_only_on_progress_within_0_to_1(config, share, length):
    factor = resolve(config)(share, 1.0)
    assert 0 <= factor <= 1
    if not any(math.isclose(share, milestone) for milestone in STEP["milestones"]):
        assert resolve(config)(share * length, length) == pytest.approx(factor, abs=1e-9)


@given(config=st.sampled_from([STEP, COSINE]), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_step_and_cosine_never_rise(config, shares):
    earlier, later = sorted(shares)
    assert resolve(config)(later, 1.0) <= resolve(config)(earlier, 1.0)


@pytest.mark.parametrize(
    ("config", "position", "length", "message"),
    [
        ({"name": "cosin"}, 0, 1, r"'cosin' .*constant, step, increase_batch, cosine, onecycle"),
        ({"name": "cosine", "end": 0}, 0, 1, r"'cosine' has no key end; .*: final"),
        ({"name": "step"}, 0, 1, r"'step' .*milestones"),
        ({"name": "step", "milestones": [50, 80]}, 0, 1, r"milestones \[50, 80\] are not shares"),
        ({"name": "step", "milestones": [0.5, 1.01]}, 0, 1, r"milestones \[1.01\] are not shares"),
        ({"name": "step", "milestones": "0.5"}, 0, 1, r"milestones '0.5' are not a list"),
        ({"name": "step", "milestones": 0.5}, 0, 1, r"milestones 0.5 are not a list"),
        ({"name": "increase_batch", "milestones": [2]}, 0, 1, r"milestones \[2\] are not shares"),
        ({"name": "onecycle", "peak": 1}, 0, 1, r"peak 1 is not"),
        ({"name": "constant"}, -1, 1, r"position -1 of length 1"),
        ({"name": "constant"}, 0, 0, r"position 0 of length 0"),
    ],
)
def test_an_invalid_schedule_is_refused(config, position, length, message):
    with pytest.raises(ValueError, match=message):
        resolve(config)(position, length)


def halved(progress, *, by=2.0):
    return 1 - progress / by


def test_a_dotted_path_is_a_schedule():
    assert resolve({"name": f"{__name__}:halved", "by": 4})(50, 100) == 0.875


LINEAR = LearningRate(rule="linear", value=0.8, warmup_from=0.1, warmup_epochs=2)


@pytest.mark.parametrize(
    ("lr", "schedule", "position", "rate"),
    [
        *((LINEAR, {"name": "constant"}, *pair) for pair in ((0, 0.1), (500, 0.45), (1000, 0.8), (5000, 0.8))),
        # The schedule counts from the first sample.
        (LINEAR, {"name": "step", "milestones": [0.05, 0.5], "gamma": 0.5}, 500, 0.225),
        (LINEAR, {"name": "step", "milestones": [0.05, 0.5], "gamma": 0.5}, 5000, 0.2),
        (LearningRate(value=0.3, warmup_from=0.3), {"name": "constant"}, 0, 0.3),
    ],
)
def test_warm_up_is_linear_in_samples(lr, schedule, position, rate):
    budget = TrainingLength(samples=10_000)
    plan = TrainingPlan(length=budget, lr=lr, schedule=resolve(schedule), batch_size=10, epoch_samples=500)
    assert plan.rate(Progress(position=position)) == pytest.approx(rate)


SCHEDULE = {"name": "increase_batch", "milestones": [0.5, 0.8], "gamma": 0.1}
EXACT = CONFIG["trainable"] | {"precision": "fp64", "val_fraction": 0.0}
DIGITS = {"name": "digits", "subset": {"train": 400, "test": 50}}


@pytest.mark.parametrize(("progress", "times"), [(0.0, 1), (0.49, 1), (0.5, 10), (0.79, 10), (0.8, 100), (1.0, 100)])
def test_the_batch_grows_where_the_rate_would_fall(progress, times):
    growth = Growth.of(SCHEDULE)
    assert growth.times(progress, 32) == times and growth.rate(progress, 32) == 1.0
    assert Growth.of({"name": "constant"}).times(progress, 32) == 1


@pytest.mark.parametrize(("progress", "times", "rate"), [(0.4, 1, 1.0), (0.6, 10, 1.0), (0.9, 10, 0.1)])
def test_beyond_the_largest_batch_the_rate_falls(progress, times, rate):
    growth = Growth.of(SCHEDULE | {"most": 1000})
    assert growth.times(progress, 32) == times and growth.rate(progress, 32) == pytest.approx(rate)


def test_the_largest_batch_may_be_reached_exactly():
    growth = Growth.of(SCHEDULE | {"most": 320})
    assert growth.times(1.0, 32) == 10 and growth.largest(32) == 320 and growth.rate(1.0, 32) == pytest.approx(0.1)


@pytest.mark.parametrize(("gamma", "times"), [(0.5, 2), (1 / 3, 3), (1 / 49, 49)])
def test_the_batch_grows_by_one_over_gamma(gamma, times):
    growth = Growth.of({"name": "increase_batch", "milestones": [0.8, 0.5], "gamma": gamma})
    assert [growth.times(progress, 32) for progress in (0.4, 0.6, 0.8)] == [1, times, times**2]
    assert growth.milestones == (0.5, 0.8)


@pytest.mark.parametrize(("through", "shares", "passes"), [("batch", (30, 50), 2), ("accumulation", (3, 5), 20)])
def test_growth_is_in_shares_or_passes(through, shares, passes):
    grown = Growth.of(SCHEDULE | {"through": through}).enlarged(
        Batch(global_batch_size=16, grad_accum_steps=2, shares=(3, 5)), 10
    )
    assert grown == Batch(global_batch_size=160, grad_accum_steps=passes, shares=shares)


def course(budget, milestones, most=None):
    return TrainingPlan(
        length=budget,
        lr=LearningRate(value=0.1, warmup_from=0.1),
        schedule=lambda position, length: 1.0,
        growth=Growth(milestones=milestones, factor=4, most=most),
        batch_size=32,
        epoch_samples=320,
    )


def test_steps_end_at_milestones_and_with_the_budget():
    plan, at, taken = course(TrainingLength(samples=50 * 32), (0.5, 0.9)), Progress(), []
    while True:
        at.times = plan.times(at)
        if not (room := plan.room(at)):
            break
        for _ in range(room):
            at.count_step(plan.step_samples(at), 1.0, plan.rate(at))
        taken.append((room, at.times, at.position / 32))
    # The last step, of 16 times the batch, completes the budget of 50 times the batch.
    assert taken == [(25, 1, 25.0), (5, 4, 45.0), (1, 16, 61.0)]
    assert at.samples == 61 * 32


@pytest.mark.parametrize(("most", "times", "rate"), [(None, 4, 0.1), (100, 1, 0.025)])
def test_a_milestone_changes_batch_or_rate(most, times, rate):
    plan, earlier, later = (
        course(TrainingLength(samples=1600), (0.5,), most),
        Progress(position=799),
        Progress(position=800),
    )
    assert (plan.times(earlier), plan.rate(earlier)) == (1, 0.1)
    assert (plan.times(later), plan.rate(later)) == (times, pytest.approx(rate))


@pytest.mark.parametrize("through", ["batch", "accumulation"])
def test_a_training_counts_its_steps_and_samples(through):
    schedule = {"name": "increase_batch", "milestones": [0.5], "gamma": 0.25, "through": through}
    sections = {"trainable": EXACT, "data": DIGITS, "schedule": schedule, "budget": {"epochs": 4}}
    answer = run(request(shares=(20,), config=sections))
    assert answer["status"] == "ok", answer["trace"]
    # 20 steps of 20 samples in each of the first two epochs, 5 of 80 in the others
    assert [row["steps"] for row in answer["rows"]] == [20, 40, 45, 50]
    assert [row["samples"] for row in answer["rows"]] == [400, 800, 1200, 1600]
    assert (answer["metrics"]["samples"], answer["metrics"]["steps"], answer["metrics"]["epochs"]) == (1600, 50, 4)
    epochs = [row["epoch_s"] for row in answer["rows"][1:]]
    assert answer["metrics"]["samples_per_s"] == pytest.approx(1200 / sum(epochs))


def test_passes_or_shares_are_the_same_update(pair):
    schedule: dict[str, Any] = {"name": "increase_batch", "milestones": [0.3], "gamma": 0.5}
    losses = []
    for through, shares in (("batch", (24,)), ("accumulation", (24,)), ("batch", (8, 16))):
        sections = {"trainable": EXACT, "data": DIGITS, "schedule": schedule | {"through": through}}
        asked: dict[str, Any] = {"config": sections | {"budget": {"epochs": 3}}, "shares": shares}
        if len(shares) == 1:
            answers = [run(request(**asked))]
        else:
            answers = run_two(pair, **asked)
        assert all(answer["status"] == "ok" for answer in answers), answers[0]["trace"]
        losses.append([row["loss"] for row in answers[0]["rows"]])
    assert losses[1:] == [pytest.approx(losses[0], abs=1e-10)] * 2


@pytest.mark.parametrize(
    ("sections", "note"),
    [
        ({"schedule": SCHEDULE | {"gamma": 0.3}}, "schedule.gamma=0.3"),
        ({"schedule": SCHEDULE | {"gamma": 0}}, "schedule.gamma=0"),
        ({"schedule": SCHEDULE | {"gamma": 1e-320}}, "schedule.gamma=1e-320"),
        ({"schedule": SCHEDULE | {"through": "time"}}, "schedule.through='time'"),
        ({"schedule": SCHEDULE}, "schedule.most"),
        ({"schedule": SCHEDULE | {"most": 700}}, "budget.epochs or budget.samples"),
        ({"schedule": SCHEDULE | {"milestones": [2]}, "budget": {"epochs": 1}}, "milestones [2]"),
    ],
)
def test_an_impossible_growth_fails_the_trial(sections, note):
    answer = run(request(config=sections))
    assert answer["status"] == "failed" and note in answer["note"]
