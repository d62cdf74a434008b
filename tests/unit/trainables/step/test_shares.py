import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.step.shares import proportional


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
