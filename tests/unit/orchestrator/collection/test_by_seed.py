"""Seeds of cells side by side; what tests see of a difference is what its interval shows."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from orchestrator.collection.by_seed import Differences, by_cell

NAN = math.nan
OK = pd.DataFrame(
    {
        "cell_id": ["a", "b", "a", "b", "a", "c", "c", "b", "d", "c"],
        "seed": [0, 0, 1, 1, 2, 0, 1, 2, 0, 5],
        "accuracy": [0.90, 0.93, 0.92, 0.97, 0.97, 0.80, 0.90, 0.96, 0.5, 0.82],
    }
)
CELLS = pd.Index(["a", "b", "c", "d", "none"])


def against_a() -> Differences:
    return Differences.of(OK, "accuracy", CELLS, pd.Series(["a"] * len(CELLS), index=CELLS))


def test_a_row_a_cell_has_its_seeds_and_nothing_more():
    wanted = [[0.90, 0.92, 0.97], [0.93, 0.97, 0.96], [0.80, 0.90, 0.82], [0.5, NAN, NAN], [NAN] * 3]
    np.testing.assert_array_equal(by_cell(CELLS, OK, "accuracy"), wanted)
    np.testing.assert_array_equal(by_cell(CELLS[[2, 0, 2]], OK, "accuracy"), np.array(wanted)[[2, 0, 2]])


def test_the_same_seeds_stand_in_pairs_and_others_are_compared_by_welch():
    found = against_a()
    assert found.same_seeds[:3].tolist() == [True, True, False]
    of = {cell: OK.accuracy[OK.cell_id == cell].to_numpy() for cell in "abc"}
    pairs = stats.ttest_rel(of["b"], of["a"]).confidence_interval()
    welch = stats.ttest_ind(of["c"], of["a"], equal_var=False).confidence_interval()
    interval = found.interval()
    assert (interval.lo[1], interval.hi[1]) == pytest.approx((pairs.low, pairs.high))
    assert (interval.lo[2], interval.hi[2]) == pytest.approx((welch.low, welch.high))
    assert interval.point[:3] == pytest.approx([0.0, of["b"].mean() - of["a"].mean(), of["c"].mean() - of["a"].mean()])


def test_what_is_tested_is_what_the_interval_shows():
    found = against_a()
    interval, tested = found.interval(), found.tested()
    for index in (1, 2):
        half = stats.t.ppf(0.975, tested[index].freedom) * tested[index].error
        assert tested[index].point == pytest.approx(interval.point[index])
        assert interval.hi[index] - interval.point[index] == pytest.approx(half)
    assert [each.verdict(0.1) for each in tested] == ["equivalent", "equivalent", "inconclusive", "", ""]


def test_seeds_that_do_not_vary_and_are_not_the_same_have_an_error_of_0():
    ok = pd.DataFrame(
        {"cell_id": ["a", "a", "b", "b", "b"], "seed": [0, 1, 0, 1, 2], "accuracy": [0.5] * 2 + [0.75] * 3}
    )
    cells = pd.Index(["b"])
    (found,) = Differences.of(ok, "accuracy", cells, pd.Series(["a"], index=cells)).tested()
    assert (found.point, found.error, found.freedom) == pytest.approx((0.25, 0.0, 3.0))
