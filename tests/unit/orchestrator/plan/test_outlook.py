"""Who will be recommended at the end of a sweep, against sweeps that are played to their end."""

import math

import numpy as np
import pytest

from orchestrator.decision.choice import choose
from orchestrator.decision.contest import Contest, accuracies
from orchestrator.decision.recommendation import SURE
from orchestrator.plan.outlook import Outlook

NAN = math.nan
BASE, FAST = [0.98, 0.99, 0.97], [0.97, 0.98, NAN]


def outlook(accuracy, seconds, left, margin=0.01):
    accuracy, seconds = np.array(accuracy), np.array(seconds)
    objective = np.where(np.isnan(accuracy), np.nan, seconds[:, None])
    return Outlook(contest=Contest(objective=objective, accuracy=accuracy, baseline=0, margin=margin), left=left)


def test_a_fast_cell_that_keeps_the_margin_will_be_chosen_and_nothing_is_left_open():
    found = outlook([BASE, [0.98, 0.99, NAN], [0.98, 0.97, NAN]], [3.0, 1.0, 2.0], [0, 0, 1])
    assert found.p_chosen.tolist() == [0.0, 1.0, 0.0]
    assert found.open(1) == {1}  # fewer than three seeds make any recommendation provisional
    three = outlook([BASE, [0.98, 0.99, 0.98], [0.98, 0.97, NAN]], [3.0, 1.0, 2.0], [0, 0, 1])
    assert three.open(1) == set()


def test_a_cell_that_its_last_seed_may_bring_back_is_open_and_one_that_it_cannot_is_not():
    accuracy = [BASE, [0.98, 0.97, 0.985], [0.965, 0.97, NAN], [0.93, 0.94, NAN]]
    found = outlook(accuracy, [3.0, 2.0, 1.0, 0.5], [0, 0, 1, 1])
    assert 1 - SURE < found.p_chosen[2] < SURE and found.p_chosen[3] < 1 - SURE
    assert found.open(1) == {1, 2}
    assert math.isclose(found.p_chosen.sum(), 1.0)


def test_where_chance_is_unknown_only_who_is_much_slower_or_far_behind_is_out():
    accuracy = [[each, NAN, NAN] for each in (0.98, 0.97, 0.95, 0.98, 0.98)]
    found = outlook(accuracy, [3.0, 1.0, 1.0, 1.05, 1.2], [2] * 5)
    assert np.isnan(found.p_chosen).all()
    assert found.open(1) == {1, 3}
    assert found.bound(1) == pytest.approx(2 * (0.98 - 2 * 0.01) - 0.97)
    assert found.bound(0) is None


def test_a_first_seed_falls_short_of_the_baselines_same_seed():
    # Against the baseline's mean, .98, the second would be .03 short, and out; its seed was as hard for the baseline.
    found = outlook([[0.96, 0.99, 0.99], [0.95, NAN, NAN], [NAN, 0.95, NAN]], [3.0, 1.0, 1.0], [0, 2, 2])
    assert found.open(0) == {0, 1}


def test_nobody_is_sure_as_long_as_chance_is_unknown_of_who_may_be_better():
    """The baseline has all its seeds, and is the only one that keeps the margin by now; one seed tells little."""
    found = outlook([BASE, [0.968, NAN, NAN], [0.94, NAN, NAN]], [3.0, 1.0, 1.0], [0, 2, 2])
    assert found.open(0) == {0, 1}


def test_the_last_seed_is_timed_where_the_mean_keeps_the_margin_with_it():
    found = outlook([BASE, FAST, [0.98, 0.99, 0.98]], [3.0, 1.0, 2.0], [0, 1, 0])
    bound = found.bound(1)
    assert np.mean([0.97, 0.98, bound]) == pytest.approx(0.98 - 0.01)
    assert found.bound(2) is None  # no further seed


def test_a_bound_is_lower_as_long_as_the_baseline_has_seeds_to_come():
    """Below it a cell has no more than one chance in ten to come within the margin of the baseline's own end."""
    rest = [[0.98, 0.99, 0.985], [0.96, 0.97, 0.965], [0.975, 0.97, 0.98]]
    found = outlook([[0.98, 0.99, NAN], FAST, *rest], [3.0, 1.0, 2.0, 2.5, 2.7], [1, 1, 0, 0, 0])
    bound, own = found.bound(1), accuracies(found.contest)
    assert bound is not None and np.isinf(own.freedom).all()
    generator, sigma = np.random.default_rng(5), own.error[0] * math.sqrt(2)
    last = generator.normal(generator.normal(0.985, sigma / math.sqrt(2), 100_000), sigma)
    within = np.mean([0.97, 0.98, bound]) >= (0.98 + 0.99 + last) / 3 - 0.01
    assert within.mean() == pytest.approx(1 - SURE, abs=0.01)


@pytest.mark.parametrize("mean", [0.977, 0.971, 0.968, 0.962])
def test_the_chances_are_those_of_sweeps_played_to_their_end(mean: float) -> None:
    """With a flat prior: the true value is drawn around what was seen, and the seed to come around that."""
    generator = np.random.default_rng(3)
    accuracy = 0.98 + 0.008 * generator.standard_normal((5, 3))
    accuracy[:2] = BASE, [mean - 0.004, mean + 0.004, NAN]
    seconds = np.array([3.0, 1.0, 2.0, 2.5, 2.7])[:, None] * np.exp(0.05 * generator.standard_normal((5, 3)))
    now = Contest(objective=np.where(np.isnan(accuracy), NAN, seconds), accuracy=accuracy, baseline=0, margin=0.01)
    own, chosen = accuracies(now), 0
    sigma = own.error[1] * math.sqrt(2)
    for _ in range(400):
        true = generator.normal(mean, sigma / math.sqrt(2))
        played = accuracy.copy()
        played[1, 2] = generator.normal(true, sigma)
        end = Contest(objective=seconds, accuracy=played, baseline=0, margin=0.01)
        chosen += choose(end, generator, 1_000).favourite == 1
    assert math.isinf(own.freedom[1])
    assert Outlook(contest=now, left=[0, 1, 0, 0, 0]).p_chosen[1] == pytest.approx(chosen / 400, abs=0.08)


def test_without_accuracies_the_fastest_will_be_chosen_and_none_has_a_bound():
    accuracy = np.full((2, 3), NAN)
    objective = np.array([[1.0, 1.1, NAN], [2.0, 2.1, 2.05]])
    found = Outlook(contest=Contest(objective=objective, accuracy=accuracy, baseline=None, margin=0.01), left=[1, 0])
    assert found.bound(0) is None
    known = Outlook(contest=Contest(objective=objective, accuracy=accuracy, baseline=None, margin=0.01), left=[0, 0])
    assert known.p_chosen.tolist() == [1.0, 0.0]
