import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.context import LearningRate
from trainables.optimizers.schedules import Rates, resolve

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
def test_hand_computed_factors(config: dict[str, Any], position: float, expected: float) -> None:
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
def test_what_is_left_out_is_as_documented(config: dict[str, Any], factors: list[float]) -> None:
    assert [resolve(config)(position, 100) for position in (0, 30, 50, 100)] == pytest.approx(factors, abs=1e-12)


@given(epochs=st.integers(1, 1000), samples=st.integers(1, 10**7))
def test_milestones_fall_on_whole_epochs(epochs: int, samples: int) -> None:
    """E1's recipe: divided by 10 when half and four fifths of the epochs are done, whatever the size of an epoch."""
    length = 10 * epochs * samples
    assert [resolve(STEP)(epoch * epochs * samples, length) for epoch in (4, 5, 7, 8)] == pytest.approx(
        [1, 0.1, 0.1, 0.01]
    )


@given(config=st.sampled_from(EVERY), share=st.floats(0, 2), length=st.floats(1, 1e12))
def test_factors_depend_on_the_share_alone_and_stay_within_0_and_1(
    config: dict[str, Any], share: float, length: float
) -> None:
    found = resolve(config)(share, 1.0)
    assert 0 <= found <= 1
    if not any(math.isclose(share, milestone) for milestone in STEP["milestones"]):
        assert resolve(config)(share * length, length) == pytest.approx(found, abs=1e-9)


@given(config=st.sampled_from([STEP, COSINE]), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_step_and_cosine_never_rise(config: dict[str, Any], shares: tuple[float, float]) -> None:
    earlier, later = sorted(shares)
    assert resolve(config)(later, 1.0) <= resolve(config)(earlier, 1.0)


@pytest.mark.parametrize(
    ("config", "position", "length", "message"),
    [
        ({"name": "cosin"}, 0, 1, r"schedule 'cosin' is not one of constant, step, increase_batch, cosine, onecycle"),
        ({"name": "cosine", "end": 0}, 0, 1, r"schedule 'cosine' has no key end; its keys are: final"),
        ({"name": "step"}, 0, 1, r"schedule 'step' needs a value for milestones"),
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
def test_what_is_wrong_is_told(config: dict[str, Any], position: float, length: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(config)(position, length)


def halved(progress: float, *, by: float = 2.0) -> float:
    return 1 - progress / by


def test_a_dotted_path_is_a_schedule_of_the_users_own() -> None:
    assert resolve({"name": f"{__name__}:halved", "by": 4})(50, 100) == 0.875


def rates(schedule: dict[str, object]) -> Rates:
    lr = LearningRate(rule="linear", value=0.8, warmup_from=0.1, warmup_epochs=2)
    return Rates(lr=lr, schedule=resolve(schedule), warmup_samples=1000)


@pytest.mark.parametrize(("position", "rate"), [(0, 0.1), (500, 0.45), (1000, 0.8), (5000, 0.8)])
def test_the_warm_up_is_linear_in_samples(position: float, rate: float) -> None:
    assert rates({"name": "constant"}).at(position, 10_000) == pytest.approx(rate)


def test_the_schedule_counts_from_the_first_sample() -> None:
    halved = rates({"name": "step", "milestones": [0.05, 0.5], "gamma": 0.5})
    assert halved.at(500, 10_000) == pytest.approx(0.225)
    assert halved.at(5000, 10_000) == pytest.approx(0.2)


def test_without_a_warm_up_the_value_holds_from_the_start() -> None:
    plain = Rates(lr=LearningRate(value=0.3, warmup_from=0.3), schedule=resolve({"name": "constant"}), warmup_samples=0)
    assert plain.at(0, 100) == 0.3
