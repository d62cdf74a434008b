import math

import numpy as np
import pytest

from orchestrator.statistics.equivalence import Difference, power

# t(.95, 2) = 2.919986: with an error of .001 the 90% interval is ±.00292.


def difference(point, error=0.001, freedom=2):
    return Difference(point=point, error=error, freedom=freedom)


@pytest.mark.parametrize(
    ("point", "verdict"),
    [
        (0.0, "equivalent"),
        (0.00707, "equivalent"),
        (0.00709, "inconclusive"),
        (-0.00709, "inconclusive"),
        (-0.01291, "inconclusive"),
        (-0.01293, "worse"),
        (0.01293, "better"),
    ],
)
def test_verdicts_equal_those_computed_by_hand(point, verdict):
    assert difference(point).verdict(0.01) == verdict


def test_power_agrees_with_simulation():
    sample = 0.4 + 0.7 * np.random.default_rng(3).standard_normal((40_000, 3))
    half = 2.919986 * sample.std(axis=1, ddof=1) / math.sqrt(3)
    shown = (sample.mean(axis=1) - half > -1) & (sample.mean(axis=1) + half < 1)
    assert power(1, 0.7, 3, true=0.4) == pytest.approx(shown.mean(), abs=0.01)


def test_power_at_the_margin_is_at_most_the_level():
    assert all(power(1, deviation, n, true=1) <= 0.0501 for deviation in (0.01, 0.3, 1, 3) for n in (2, 3, 5, 20))


def test_power_without_an_error_is_0_or_1():
    assert power(1, 0.0, 5, true=0.5) == 1 and power(1, 0.0, 5, true=1.5) == 0
    assert power(1, 0.1, 1) == 0
    assert power(1, 0.7, 5) > power(1, 0.7, 5, true=0.001)  # unless told otherwise there is no difference


@pytest.mark.parametrize(
    ("point", "word"), [(0.0099, "equivalent"), (0.01, "inconclusive"), (-0.01, "inconclusive"), (0.0101, "better")]
)
def test_only_a_difference_of_just_the_margin_is_inconclusive(point, word):
    assert difference(point, error=0.0).verdict(0.01) == word


def test_two_pairs_may_give_a_verdict_but_one_does_not():
    assert Difference(point=-1.0, error=0.001, freedom=1).verdict(0.01) == "worse"
    assert Difference(point=-1.0, error=0.001, freedom=0).verdict(0.01) == ""
    assert power(0.01, 0.001, 1) == 0 and power(0.01, 0.0001, 2) > 0.99
