import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.curve_distance import FEWEST, Curve, distance, distances
from studies.loss_distance import between_cells, between_seeds

CURVE = np.array([2.0, 1.0, 0.5, 0.25, 0.125])
EPOCHS = np.arange(1.0, 6.0)


def curve(losses, at=EPOCHS):
    return Curve.of(at, losses)


def test_the_distance_is_the_mean_difference_of_the_logarithms():
    ones, others = [curve(CURVE)] * 2, [curve(CURVE * 1.1), curve([2.0, 1.0, 0.5, 0.25, 0.25])]
    assert distances(ones, others) == pytest.approx([math.log(1.1), math.log(2) / 5])
    assert distances(others, ones) == pytest.approx(distances(ones, others)), "it has no direction"


def test_curves_are_compared_over_their_common_range():
    # ln loss falls by ln 2 each 100 samples; the other has four further positions between 150 and 500.
    one = curve(CURVE, 100 * EPOCHS)
    at = np.array([150.0, 250.0, 350.0, 450.0, 475.0, 550.0, 650.0])
    other = curve(3 * 2 * 2 ** (-(at - 100) / 100), at)
    assert math.isnan(distance(one, other)), "only four common positions"
    longer = curve(2 * 2 ** (-(np.arange(100.0, 1000.0, 50.0) - 100) / 100), np.arange(100.0, 1000.0, 50.0))
    assert distance(longer, other) == pytest.approx(math.log(3))
    # Half a step further on, a curve that falls by ln 2 a step is ln 2 / 2 lower throughout.
    assert distance(longer, Curve(at=longer.at - 50, log_loss=longer.log_loss)) == pytest.approx(math.log(2) / 2)


def test_the_last_loss_of_a_position_counts():
    last_losses = Curve.of([3, 1, 2, 2, 4, 5], [0.5, 2.0, 9.0, 1.0, 0.0, math.inf])
    assert last_losses.at.tolist() == [1, 2, 3] and last_losses.log_loss == pytest.approx(np.log([2.0, 1.0, 0.5]))
    assert math.isnan(distance(last_losses, last_losses)) and FEWEST == 5, "three are points"
    assert math.isnan(distance(None, curve(CURVE))) and math.isnan(distance(Curve.of([], []), curve(CURVE)))


def test_distances_of_cells_and_seeds_equal_those_by_hand():
    ones = [curve(CURVE * factor) for factor in (1, 1.2, 1.4)]
    interval = between_cells(ones, [curve(CURVE * factor) for factor in (1.1, 1.2 * 1.1, 1.4 * 1.2)])
    logs = np.log([1.1, 1.1, 1.2])
    half = 4.302652729911275 * logs.std(ddof=1) / math.sqrt(3)  # Student's t, 2 degrees of freedom
    assert (interval.point[0], interval.hi[0]) == pytest.approx((logs.mean(), logs.mean() + half))
    assert between_seeds(ones) == pytest.approx(np.mean([math.log(1.2), math.log(1.4), math.log(1.4 / 1.2)]))
    assert math.isnan(between_seeds(ones[:1]))


losses = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=12)


@given(losses, losses, losses, st.floats(0.01, 100))
def test_distance_is_a_metric_independent_of_units(one, other, third, unit):
    a, b, c = (curve(losses_of_curve[:6], np.arange(6.0)) for losses_of_curve in (one, other, third))
    assert distance(a, a) == 0
    assert distance(a, b) == distance(b, a) >= 0
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9
    scaled = [Curve(at=original.at * unit, log_loss=original.log_loss + math.log(unit)) for original in (a, b)]
    assert distance(*scaled) == pytest.approx(distance(a, b), abs=1e-9)
    offset = Curve(at=a.at, log_loss=a.log_loss + math.log(unit))
    assert distance(a, offset) == pytest.approx(abs(math.log(unit)), abs=1e-9)
