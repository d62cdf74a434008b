"""Moderated variances against samples of the same model."""

import numpy as np
import pytest

from orchestrator.statistics.variances import moderated


def test_equal_variances_borrow_most_of_what_all_know():
    variance, freedom = moderated(np.array([1.0, 1.1, 0.9, 1.0]), np.full(4, 2.0))
    assert np.ptp(variance) < 0.1 and variance.mean() == pytest.approx(1.0, rel=0.5)
    assert (freedom > 2.0 + 1).all() and (freedom <= 8.0).all()


def test_a_cell_with_one_seed_has_the_variance_of_all():
    variance, freedom = moderated(np.array([1.0, 1.1, 0.9, np.nan]), np.array([2.0, 2.0, 2.0, 0.0]))
    assert variance[3] == pytest.approx(variance[0], rel=0.2) and 0 < freedom[3] < freedom[0]


@pytest.mark.parametrize("variance", [[1.0, 4.0], [0.0, 0.0, 0.0, 7.0]])
def test_too_few_or_mostly_zero_variances_stay_as_they_are(variance):
    given, freedom = np.array(variance), np.full(len(variance), 2.0)
    assert moderated(given, freedom)[0] is given


def test_the_prior_is_recovered_from_its_samples():
    """The true variances are drawn from the model itself: d₀ = 6 around s₀² = 0.5."""
    generator = np.random.default_rng(3)
    true = 0.5 * 6 / generator.chisquare(6, 20_000)
    sample = true * generator.chisquare(4, 20_000) / 4
    variance, freedom = moderated(sample, np.full(20_000, 4.0))
    assert freedom[0] == pytest.approx(6 + 4, rel=0.1)
    assert np.median(variance / ((6 * 0.5 + 4 * sample) / 10)) == pytest.approx(1, rel=0.02)


def test_very_different_variances_are_hardly_pooled():
    variance = 10.0 ** np.arange(-6, 7)
    pooled, freedom = moderated(variance, np.full(13, 9.0))
    assert 9 < freedom[0] < 9.3
    assert pooled[6:] == pytest.approx(variance[6:], rel=0.05)


def test_no_variance_is_below_its_floor_if_the_trend_is_not():
    variance, freedom = np.array([0.01, 1.0, 1.2, 0.8, 1.1, 0.9, 1.0, 1.0]), np.full(8, 2.0)
    free, floored = (moderated(variance, freedom, floor=floor)[0] for floor in (None, np.full(8, 0.45)))
    assert free[0] < floored[0] == pytest.approx(0.45)
    assert floored[1:] == pytest.approx(np.maximum(free[1:], 0.45))
