import math

import numpy as np
import pytest
from scipy import stats

from orchestrator.statistics.censoring import median_time

NAN = math.nan


def ends(interval):
    return float(interval.lo), float(interval.point), float(interval.hi)


def of(reached, waited=()):
    return ends(median_time(np.array(reached, dtype=float), np.array(waited, dtype=float)))


def test_complete_times_get_students_interval():
    half = 4.302652729911275 * math.log(2) / math.sqrt(3)
    assert of([1, 2, 4], [NAN]) == pytest.approx((2 * math.exp(-half), 2, 2 * math.exp(half)))


def test_the_point_equals_scipys_maximum_likelihood():
    reached, waited = [10.0, 12.0, 15.0, 11.0, 13.0], [16.0, 16.0, 16.0]
    data = stats.CensoredData(uncensored=np.log(reached), right=np.log(waited))
    center, _ = stats.norm.fit(data)
    lo, point, hi = of(reached, waited)
    assert point == pytest.approx(math.exp(center), rel=2e-3)
    assert lo < point < hi < math.inf


def test_a_censored_time_is_not_dropped():
    lo, point, hi = of([10, 11, 12], [30])
    assert point > of([10, 11, 12])[1] and hi > of([10, 11, 12])[2]
    assert lo < 12 < hi


def test_short_censored_times_change_little():
    assert of([10, 11, 12, 13], [1]) == pytest.approx(of([10, 11, 12, 13]), rel=0.06)


def test_many_missed_times_leave_no_upper_end():
    lo, point, hi = of([10, 12], [12.5, 12.5, 12.5, 12.5])
    assert hi == math.inf and point > 12 and lo > 0


@pytest.mark.parametrize(("reached", "waited"), [([], [5]), ([NAN], []), ([3], [5]), ([3, 3], [5])])
def test_too_few_times_have_no_interval(reached, waited):
    assert all(math.isnan(end) for end in of(reached, waited))
