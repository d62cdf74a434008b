import math

import numpy as np
import pytest
from scipy import stats

from orchestrator.statistics.bootstrap import bootstrap_mean, expanded_tail, mean_interval

TEN = np.array([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0, 29.0])


def test_the_expanded_tail_by_hand():
    # t(.975, 9) = 2.262157; √(10/9) · 2.262157 = 2.384522; Φ(−2.384522) = .008551
    assert expanded_tail(10) == pytest.approx(0.008551, abs=2e-6)
    assert expanded_tail(100_000) == pytest.approx(0.025, abs=1e-5)


def test_against_scipys_bootstrap():
    found = bootstrap_mean(TEN[None, :])
    oracle = stats.bootstrap(
        (TEN,),
        np.mean,
        confidence_level=1 - 2 * expanded_tail(10),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(7),
    ).confidence_interval
    assert found.point[0] == TEN.mean()
    assert (found.lo[0], found.hi[0]) == pytest.approx((oracle.low, oracle.high), abs=0.4)


def test_below_ten_values_it_is_students():
    found = mean_interval(np.array([[1, 2, 3, *[math.nan] * 7], TEN]))
    half = 4.302652729911275 / math.sqrt(3)
    assert (found.lo[0], found.hi[0]) == pytest.approx((2 - half, 2 + half))
    assert found.lo[1] == bootstrap_mean(TEN[None, :]).lo[0]


def test_missing_values_are_left_out_and_rows_do_not_depend_on_each_other():
    with_gap = np.array([[*TEN, math.nan], [*TEN, 31.0]])
    alone = bootstrap_mean(TEN[None, :])
    assert bootstrap_mean(with_gap).hi[0] == alone.hi[0]
    assert np.isnan(bootstrap_mean(TEN[None, :9]).lo).all()


def test_what_never_varies_has_an_interval_of_width_0():
    found = bootstrap_mean(np.full((1, 12), 3.0))
    assert (found.lo[0], found.point[0], found.hi[0]) == pytest.approx((3, 3, 3))
