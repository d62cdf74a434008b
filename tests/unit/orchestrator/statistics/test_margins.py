import pytest

from orchestrator.statistics.margins import Difference

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


@pytest.mark.parametrize(
    ("point", "word"),
    [(0.01, "equivalent"), (-0.01, "equivalent"), (0.99 - 1.0, "equivalent"), (0.0101, "better"), (-0.0101, "worse")],
)
def test_a_difference_of_just_the_margin_is_within_it(point, word):
    assert difference(point, error=0.0).verdict(0.01) == word


def test_two_pairs_may_give_a_verdict_but_one_does_not():
    assert Difference(point=-1.0, error=0.001, freedom=1).verdict(0.01) == "worse"
    assert Difference(point=-1.0, error=0.001, freedom=0).verdict(0.01) == ""
