import math

import numpy as np
import pytest
import scipy  # its `stats` is slow, and loaded when it is used
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from orchestrator.statistics.intervals import (
    Moments,
    apart_from_shared,
    bootstrap_mean,
    difference,
    expanded_tail,
    logs,
    mean,
    mean_interval,
    proportion_interval,
    ratio,
    student,
    welch,
)

T2, T3, T4 = 4.302652729911275, 3.182446305284263, 2.7764451051977987  # t(.975) by hand from a printed table: 4.303 …

values = st.floats(0.01, 100)


def ends(interval):
    return float(interval.point), float(interval.lo), float(interval.hi)


def test_the_mean_interval_equals_values_computed_by_hand():
    half = T2 * 1 / math.sqrt(3)
    assert ends(mean([1, 2, 3])) == pytest.approx((2, 2 - half, 2 + half))


def test_the_paired_ratio_equals_values_computed_by_hand():
    # log ratios: ln 2 · (1, 1, 2), mean 4/3 ln 2, s = ln 2 / √3
    half = T2 * math.log(2) / 3
    point = 2 ** (4 / 3)
    expected = (point, point * math.exp(-half), point * math.exp(half))
    assert ends(ratio([2, 4, 12], [1, 2, 3], paired=True)) == pytest.approx(expected)


def test_welchs_interval_equals_values_computed_by_hand():
    # Variances 1 and 4 over 3: error² 5/3, freedom (5/3)² / (1/18 + 16/18) = 50/17
    half = scipy.stats.t.ppf(0.975, 50 / 17) * math.sqrt(5 / 3)
    assert ends(difference([1, 2, 3], [2, 4, 6], paired=False)) == pytest.approx((-2, -2 - half, -2 + half))


@given(hnp.arrays(np.float64, 4, elements=values), hnp.arrays(np.float64, 3, elements=values))
def test_welchs_interval_equals_scipys(one, other):
    assume(np.ptp(one) > 0.1 and np.ptp(other) > 0.1)
    oracle = scipy.stats.ttest_ind(one, other, equal_var=False).confidence_interval()
    assert ends(difference(one, other, paired=False))[1:] == pytest.approx((oracle.low, oracle.high), abs=1e-9)


def test_welch_of_alike_samples_has_all_degrees_of_freedom():
    interval = difference([1, 2, 3], [2, 3, 4], paired=False)
    assert float(interval.hi) == pytest.approx(-1 + T4 * math.sqrt(2 / 3))


@pytest.mark.parametrize("values", [[], [math.nan], [5.0], [5.0, math.nan]])
def test_fewer_than_two_values_have_no_interval(values):
    point, lo, hi = ends(mean(values))
    assert math.isnan(lo) and math.isnan(hi)
    assert point == 5.0 or (5.0 not in values and math.isnan(point))
    assert math.isnan(float(difference(values, [1, 2, 3], paired=False).lo))


def test_constant_values_have_an_interval_of_width_0():
    assert ends(difference([3, 3], [1, 1, 1], paired=False)) == (2, 2, 2)
    assert ends(ratio([3, 3], [3, 3], paired=True)) == (1, 1, 1)


def test_missing_values_are_left_out():
    assert ends(mean([1, math.nan, 2, 3])) == ends(mean([1, 2, 3]))
    assert ends(mean([1, 2, 3, 4]))[2] == pytest.approx(2.5 + T3 * math.sqrt(5 / 3) / 2)


def test_a_rate_of_0_counts_as_missing():
    assert np.isnan(logs([0, -1])).all()


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(2, 6)), elements=values))
def test_samples_in_one_call_are_independent(samples):
    together = student(Moments.of(samples))
    for index, sample in enumerate(samples):
        alone = mean(sample)
        assert (together.point[index], together.lo[index], together.hi[index]) == pytest.approx(ends(alone))


@given(hnp.arrays(np.float64, 4, elements=values), hnp.arrays(np.float64, 3, elements=values), st.floats(0.1, 10))
def test_ratio_intervals_invert_and_scale(one, other, factor):
    point, lo, hi = ends(ratio(one, other, paired=False))
    assert lo <= point <= hi
    assert ends(ratio(other, one, paired=False)) == pytest.approx((1 / point, 1 / hi, 1 / lo))
    assert ends(ratio(one * factor, other, paired=False)) == pytest.approx((point * factor, lo * factor, hi * factor))


def test_welch_takes_moments_of_samples_of_different_sizes():
    a, b = Moments.of([1.0, 2.0, 3.0, 9.0]), Moments.of([4.0, 8.0])
    assert ends(welch(a, b))[0] == pytest.approx(-2.25)


TEN = np.array([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0, 29.0])


def test_the_expanded_tail_equals_values_computed_by_hand():
    # t(.975, 9) = 2.262157; √(10/9) · 2.262157 = 2.384522; Φ(−2.384522) = .008551
    assert expanded_tail(10) == pytest.approx(0.008551, abs=2e-6)
    assert expanded_tail(100_000) == pytest.approx(0.025, abs=1e-5)


def test_the_bootstrap_agrees_with_scipys():
    interval = bootstrap_mean(TEN[None, :])
    oracle = scipy.stats.bootstrap(
        (TEN,),
        np.mean,
        confidence_level=1 - 2 * expanded_tail(10),
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(7),
    ).confidence_interval
    assert interval.point[0] == TEN.mean()
    assert (interval.lo[0], interval.hi[0]) == pytest.approx((oracle.low, oracle.high), abs=0.4)


def test_below_ten_values_the_interval_is_students():
    interval = mean_interval(np.array([[1, 2, 3, *[math.nan] * 7], TEN]))
    half = 4.302652729911275 / math.sqrt(3)
    assert (interval.lo[0], interval.hi[0]) == pytest.approx((2 - half, 2 + half))
    assert interval.lo[1] == bootstrap_mean(TEN[None, :]).lo[0]


def test_missing_values_are_excluded_and_rows_independent():
    with_gap = np.array([[*TEN, math.nan], [*TEN, 31.0]])
    alone = bootstrap_mean(TEN[None, :])
    assert bootstrap_mean(with_gap).hi[0] == alone.hi[0]
    assert np.isnan(bootstrap_mean(TEN[None, :9]).lo).all()


def test_constant_values_have_a_bootstrap_interval_of_width_0():
    interval = bootstrap_mean(np.full((1, 12), 3.0))
    assert (interval.lo[0], interval.point[0], interval.hi[0]) == pytest.approx((3, 3, 3))


def test_a_row_apart_from_what_all_share_equals_values_computed_by_hand():
    """Differences .03, .02, .04, .03, .23: median .03, median absolute deviation .01; every row has s²/3 twice."""
    deviations = np.array([-0.01, 0.0, 0.01])
    one = Moments.of(np.array([0.03, 0.02, 0.04, 0.03, 0.23])[:, None] + deviations)
    common, apart = apart_from_shared(one, Moments.of(np.zeros((5, 1)) + deviations))
    spread, own = (1.4826 * 5 / 4.2 * 0.01) ** 2, 2e-4 / 3
    of_centre, t = math.pi / 2 * spread / 5, scipy.stats.t.ppf(0.975, 2)
    half = math.sqrt(scipy.stats.t.ppf(0.975, 4) ** 2 * own + t**2 * (spread - own + of_centre))
    assert float(common.point) == pytest.approx(0.03)
    assert float(common.hi - common.point) == pytest.approx(t * math.sqrt(of_centre))
    assert apart.point == pytest.approx([0, -0.01, 0.01, 0, 0.2])
    assert apart.hi - apart.point == pytest.approx(np.full(5, half))


def test_few_rows_share_nothing_that_can_be_told():
    one = Moments.of(np.arange(12.0).reshape(4, 3))
    assert np.isfinite(apart_from_shared(one, one)[1].lo).all()
    missing = Moments.of(np.where(np.arange(4)[:, None] == 3, np.nan, np.arange(12.0).reshape(4, 3)))
    common, apart = apart_from_shared(missing, one)
    assert np.isnan(common.point) and np.isnan(apart.lo).all()


def test_equal_accuracies_of_few_samples_are_not_certain():
    """None or 6 of 2 × 300 samples are wrong: Jeffreys' intervals. Values that vary by more keep Student's."""
    accuracy = np.array([[1.0, 1.0], [0.99, 0.99], [0.5, 0.7]])
    interval = proportion_interval(accuracy, np.full((3, 2), 300.0))
    beta = scipy.stats.beta(594.5, 6.5).ppf([0.025, 0.975])
    assert (interval.lo[0], interval.hi[0]) == (pytest.approx(scipy.stats.beta(600.5, 0.5).ppf(0.025)), 1.0)
    assert [interval.lo[1], interval.hi[1]] == pytest.approx(beta)
    assert (interval.lo[2], interval.hi[2]) == (0.0, 1.0)  # 0.6 ± 12.7 · 0.1
    unknown = proportion_interval(accuracy, np.full((3, 2), np.nan))
    assert (unknown.lo[1], unknown.hi[1]) == pytest.approx((0.99, 0.99))
