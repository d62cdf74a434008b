import numpy as np
import pytest

from orchestrator.statistics.shrinkage import shrunken


def test_equal_variances_are_pooled_whole():
    # Sample variances that vary less than χ² would make them: the prior is certain, and their mean is all there is.
    variance, freedom = shrunken(np.array([1.0, 1.1, 0.9, 1.0]), np.array([2.0, 2.0, 2.0, 2.0]))
    assert variance == pytest.approx(np.full(4, 1.0))
    assert np.isinf(freedom).all()


def test_with_one_seed_a_cell_borrows_all():
    variance, freedom = shrunken(np.array([1.0, 1.1, 0.9, np.nan]), np.array([2.0, 2.0, 2.0, 0.0]))
    assert variance[3] == pytest.approx(1.0) and np.isinf(freedom[3])


@pytest.mark.parametrize("variance", [[1.0, 4.0], [0.0, 0.0, 0.0, 7.0]])
def test_too_few_or_mostly_zero_variances_stay_as_they_are(variance):
    given, freedom = np.array(variance), np.full(len(variance), 2.0)
    assert shrunken(given, freedom)[0] is given


def test_the_prior_is_found_again():
    # s² of cells whose σ² are drawn from the model itself: d₀ = 6 around s₀² = 0.5.
    generator = np.random.default_rng(3)
    true = 0.5 * 6 / generator.chisquare(6, 20_000)
    sample = true * generator.chisquare(4, 20_000) / 4
    variance, freedom = shrunken(sample, np.full(20_000, 4.0))
    assert freedom[0] == pytest.approx(6 + 4, rel=0.1)
    assert np.median(variance / ((6 * 0.5 + 4 * sample) / 10)) == pytest.approx(1, rel=0.02)


def test_unlike_cells_stand_by_themselves():
    variance = 10.0 ** np.arange(-6, 7)
    found, freedom = shrunken(variance, np.full(13, 9.0))
    assert 9 < freedom[0] < 9.3
    assert found[6:] == pytest.approx(variance[6:], rel=0.05)
