from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.context import Batch, Context
from trainables.process_group import Gang
from trainables.step.shares import proportional, share_by_speed


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
def test_shares_by_hand(total: int, speeds: list[float], shares: tuple[int, ...]) -> None:
    assert proportional(total, speeds) == shares


def test_too_few_samples() -> None:
    with pytest.raises(ValueError, match="2 samples are too few for 3 ranks"):
        proportional(2, [1, 1, 1])


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=8), st.integers(0, 5000))
def test_shares_are_complete_and_follow_speed(speeds: list[float], extra: int) -> None:
    total = len(speeds) + extra
    shares = proportional(total, speeds)
    assert sum(shares) == total and min(shares) >= 1
    for faster, slower in ((a, b) for a in range(len(speeds)) for b in range(len(speeds)) if speeds[a] > speeds[b]):
        assert shares[faster] >= shares[slower]
    if min(speeds) / sum(speeds) * total >= 1:
        exact = [total * speed / sum(speeds) for speed in speeds]
        assert all(abs(share - wanted) < 1.001 for share, wanted in zip(shares, exact, strict=True))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 20))
def test_shares_that_come_to_whole_numbers_are_exact(speeds: list[int], times: int) -> None:
    assert proportional(times * sum(speeds), speeds) == tuple(times * speed for speed in speeds)


class WithAFasterRank:
    """A gang of two, of which the other, rank 1, is three times as fast as this one."""

    rank = 0

    def each(self, speed: float) -> tuple[float, ...]:
        return (speed, 3 * speed)


def test_a_rank_that_passes_faster_takes_more_of_the_same_batch() -> None:
    half = Batch(global_batch_size=96, grad_accum_steps=2, shares=(24, 24))
    context = Context.alone(world_size=2, batch=half)
    whole = Batch(global_batch_size=96, shares=(48, 48))
    share_by_speed(context, cast(Gang, WithAFasterRank()), pass_s=0.5, whole=whole)
    assert context.batch == Batch(global_batch_size=96, shares=(24, 72))
    assert context.metrics == {"shares": [24, 72], "rank_samples_per_s": [48.0, 144.0]}
