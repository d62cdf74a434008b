import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainables.noise.noise_scale import Estimate, Smoothed

POSITIVE = st.floats(0.01, 100)


@given(POSITIVE, POSITIVE, st.integers(1, 100), st.integers(1, 100))
def test_expected_norms_give_signal_and_noise_back(signal: float, noise: float, small: int, more: int) -> None:
    big = small + more
    found = Estimate.of(signal + noise / small, signal + noise / big, small_batch=small, big_batch=big)
    assert found.signal == pytest.approx(signal, rel=1e-6, abs=1e-6)
    assert found.noise == pytest.approx(noise, rel=1e-6, abs=1e-6)


def test_gaussian_gradients_have_the_noise_scale_they_were_drawn_with() -> None:
    """Gradients ~ N(G, σ²·1) in 1000 dimensions, |G|² = 4 and tr Σ = 1000·.09 = 90: the noise scale is 22.5."""
    source = torch.Generator().manual_seed(0)
    mean = torch.zeros(1000, dtype=torch.float64)
    mean[:4] = 1
    smoothed = Smoothed()
    for _ in range(300):
        samples = mean + 0.3 * torch.randn(4, 16, 1000, generator=source, dtype=torch.float64)
        small = samples.mean(1).square().sum(1).mean().item()
        big = samples.mean((0, 1)).square().sum().item()
        smoothed.add(Estimate.of(small, big, small_batch=16, big_batch=64))
    found = smoothed.estimate
    assert found is not None
    assert found.signal == pytest.approx(4, rel=0.05) and found.noise == pytest.approx(90, rel=0.02)
    assert smoothed.noise_scale == pytest.approx(22.5, rel=0.05)


def test_parts_of_unequal_sizes_count_by_their_harmonic_mean() -> None:
    sizes, signal, noise = (2, 6), 3.0, 12.0
    small = sum(signal + noise / size for size in sizes) / 2
    found = Estimate.of(small, signal + noise / 8, small_batch=2 / (1 / 2 + 1 / 6), big_batch=8)
    assert (found.signal, found.noise) == (pytest.approx(3.0), pytest.approx(12.0))


def test_the_first_estimate_counts_whole_and_later_ones_more() -> None:
    smoothed = Smoothed()
    assert smoothed.estimate is None and smoothed.noise_scale is None
    first = Estimate(signal=0.5, noise=1.5)
    smoothed.add(first)
    assert smoothed.noise_scale == pytest.approx(3.0)
    found = smoothed.estimate
    assert found is not None and (found.signal, found.noise) == pytest.approx((first.signal, first.noise))
    for _ in range(500):
        smoothed.add(Estimate(signal=0.25, noise=2.0))
    assert smoothed.noise_scale == pytest.approx(8.0)


def test_where_noise_hides_the_signal_there_is_no_scale() -> None:
    smoothed = Smoothed()
    smoothed.add(Estimate(signal=-0.1, noise=6.0))
    assert smoothed.noise_scale is None


def test_noise_that_comes_out_below_0_is_none() -> None:
    smoothed = Smoothed()
    smoothed.add(Estimate(signal=2.0, noise=-6.0))
    assert smoothed.noise_scale == 0
