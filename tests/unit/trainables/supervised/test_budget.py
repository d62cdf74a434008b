import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.supervised.budget import Budget


def budget(**config: float | None) -> Budget:
    return Budget.of(config, steps_per_epoch=20, global_batch_size=64)


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        ({"epochs": 3, "samples": None}, 60),
        ({"epochs": 0.5}, 10),
        ({"samples": 6400}, 100),
        ({"samples": 6420}, 100),
        ({"samples": 1}, 1),
        ({"steps": 7}, 7),
    ],
)
def test_every_kind_is_a_number_of_steps(config: dict[str, float | None], steps: int) -> None:
    assert budget(**config).steps == steps
    assert (budget(**config).room(3, 1.0), budget(**config).length(3, 1.0)) == (steps - 3, steps)


@pytest.mark.parametrize("config", [{}, {"epochs": None}, {"epochs": 1, "seconds": 2}, {"steps": 0}, {"seconds": -1}])
def test_anything_but_one_positive_number_is_an_error(config: dict[str, float | None]) -> None:
    with pytest.raises(ValueError, match="budget"):
        budget(**config)


@given(step_s=st.floats(1e-4, 10), first_s=st.floats(0, 100), seconds=st.floats(0.1, 50))
def test_seconds_end_within_a_step_and_with_few_looks_at_the_clock(
    step_s: float, first_s: float, seconds: float
) -> None:
    length, steps, train_s, looks = budget(seconds=seconds), 0, 0.0, 0
    while room := length.room(steps, train_s):
        train_s += room * step_s + (first_s if steps == 0 else 0)
        steps, looks = steps + room, looks + 1
    assert seconds <= train_s <= max(seconds, first_s) + step_s * (1 + 1e-9)
    assert length.length(steps, train_s) <= steps
    assert looks <= 2 * math.log2(2 + seconds / step_s) + 2 + (first_s / step_s if first_s else 0)


def test_steps_that_get_slower_up_to_twice_as_slow_end_in_time_too() -> None:
    length, steps, train_s = budget(seconds=10.0), 0, 0.0
    while room := length.room(steps, train_s):
        train_s += sum(0.01 if step < 200 else 0.02 for step in range(steps, steps + room))
        steps += room
    assert 10.0 <= train_s <= 10.0 + 0.02 * (1 + 1e-9)


def test_the_length_is_foretold_from_the_time_used() -> None:
    assert budget(seconds=10).length(0, 0.0) == math.inf
    assert budget(seconds=10).length(50, 2.0) == 250


def test_parts_of_steps_that_sum_up_to_nearly_all_are_all() -> None:
    ten = Budget(steps=10)
    assert ten.room(10 - 1e-9, 1.0) == 0 and ten.room(9.5, 1.0) == 1
