import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainables.noise.adascale import Pace, pace
from trainables.noise.noise_scale import Estimate


@pytest.mark.parametrize(
    ("signal", "noise", "gain"),
    [
        (1.0, 0.0, 1.0),  # no noise: a larger batch shows nothing new
        (0.0, 5.0, 4.0),  # nothing but noise: the linear rule
        (1.0, 32.0, 2 / (1 / 4 + 1)),  # σ² = 32/32 = μ²
        (-0.5, 5.0, 4.0),
        (0.0, 0.0, 1.0),
    ],
)
def test_the_gain_by_hand(signal: float, noise: float, gain: float) -> None:
    found = pace(Estimate(signal=signal, noise=noise), kappa=4, reference_batch_size=32)
    assert found.gain == pytest.approx(gain) and found.advance == pytest.approx(gain / 4)


def test_at_or_below_the_reference_batch_it_is_the_linear_rule() -> None:
    estimate = Estimate(signal=1.0, noise=32.0)
    assert pace(estimate, kappa=1, reference_batch_size=32) == Pace()
    assert pace(estimate, kappa=0.5, reference_batch_size=32) == Pace(gain=0.5)
    assert Pace() == Pace(gain=1.0, advance=1.0)


def test_a_little_above_the_reference_batch_it_is_no_longer_the_linear_rule() -> None:
    found = pace(Estimate(signal=1.0, noise=32.0), kappa=1.25, reference_batch_size=32)  # 2 / (1/1.25 + 1)
    assert (found.gain, found.advance) == pytest.approx((1 / 0.9, 1 / 0.9 / 1.25))


def test_without_an_estimate_a_step_is_one_of_the_reference_batch() -> None:
    assert pace(None, kappa=4, reference_batch_size=32) == Pace(gain=1.0, advance=0.25)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e3))
def test_the_gain_lies_between_1_and_kappa(signal: float, noise: float, kappa: float) -> None:
    found = pace(Estimate(signal=signal, noise=noise), kappa=kappa, reference_batch_size=32)
    assert 1 - 1e-9 <= found.gain <= kappa * (1 + 1e-9)
