import math

import numpy as np
import pytest

from orchestrator.decision.cell_estimates import Measurements, accuracies
from orchestrator.decision.choice import choose
from orchestrator.decision.midway import Midway
from orchestrator.decision.thresholds import SURE

NAN = math.nan
AS_BASELINE, FAST = [0.98, 0.99, 0.97], [0.97, 0.98, NAN]


def midway(accuracy, seconds, left, margin=0.01):
    accuracy, seconds = np.array(accuracy), np.array(seconds)
    objective = np.where(np.isnan(accuracy), np.nan, seconds[:, None])
    return Midway(
        measurements=Measurements(objective=objective, accuracy=accuracy, baseline=0, margin=margin), seeds_left=left
    )


def test_clear_winner_leaves_no_cell_open():
    prospect = midway([AS_BASELINE, [0.98, 0.99, NAN], [0.98, 0.97, NAN]], [3.0, 1.0, 2.0], [0, 0, 1])
    assert prospect.p_chosen.tolist() == [0.0, 1.0, 0.0]
    assert prospect.may_still_win(1) == {1}  # fewer than three seeds make any recommendation provisional
    three = midway([AS_BASELINE, [0.98, 0.99, 0.98], [0.98, 0.97, NAN]], [3.0, 1.0, 2.0], [0, 0, 1])
    assert three.may_still_win(1) == set()


def test_cell_is_open_if_its_last_seed_may_help():
    accuracy = [AS_BASELINE, [0.98, 0.97, 0.985], [0.965, 0.97, NAN], [0.93, 0.94, NAN]]
    prospect = midway(accuracy, [3.0, 2.0, 1.0, 0.5], [0, 0, 1, 1])
    assert 1 - SURE < prospect.p_chosen[2] < SURE and prospect.p_chosen[3] < 1 - SURE
    assert prospect.may_still_win(1) == {1, 2}
    assert math.isclose(prospect.p_chosen.sum(), 1.0)


def test_only_far_worse_cells_are_out_without_known_chance():
    accuracy = [[accuracy, NAN, NAN] for accuracy in (0.98, 0.97, 0.95, 0.98, 0.98)]
    prospect = midway(accuracy, [3.0, 1.0, 1.0, 1.05, 1.2], [2] * 5)
    assert np.isnan(prospect.p_chosen).all()
    assert prospect.may_still_win(1) == {1, 3}
    assert prospect.bound(1) == pytest.approx(2 * (0.98 - 2 * 0.01) - 0.97)
    assert prospect.bound(0) is None


def test_first_seed_is_compared_with_the_same_baseline_seed():
    # Against the baseline's mean, .98, the second would be .03 short, and out; its seed was as hard for the baseline.
    prospect = midway([[0.96, 0.99, 0.99], [0.95, NAN, NAN], [NAN, 0.95, NAN]], [3.0, 1.0, 1.0], [0, 2, 2])
    assert prospect.may_still_win(0) == {0, 1}


def test_answer_is_unsure_while_chance_is_unknown():
    """The baseline has all its seeds, and is the only one that keeps the margin by now; one seed tells little."""
    prospect = midway([AS_BASELINE, [0.968, NAN, NAN], [0.94, NAN, NAN]], [3.0, 1.0, 1.0], [0, 2, 2])
    assert prospect.may_still_win(0) == {0, 1}


def test_last_seed_is_bounded_by_the_mean():
    prospect = midway([AS_BASELINE, FAST, [0.98, 0.99, 0.98]], [3.0, 1.0, 2.0], [0, 1, 0])
    bound = prospect.bound(1)
    assert np.mean([0.97, 0.98, bound]) == pytest.approx(0.98 - 0.01)
    assert prospect.bound(2) is None  # no further seed


def test_bound_is_lower_while_the_baseline_has_further_seeds():
    """Below it a cell has no more than one chance in ten to come within the margin of the baseline's own end."""
    rest = [[0.98, 0.99, 0.985], [0.96, 0.97, 0.965], [0.975, 0.97, 0.98]]
    prospect = midway([[0.98, 0.99, NAN], FAST, *rest], [3.0, 1.0, 2.0, 2.5, 2.7], [1, 1, 0, 0, 0])
    bound, own = prospect.bound(1), accuracies(prospect.measurements)
    assert bound is not None
    generator = np.random.default_rng(5)
    sigma = own.error[0] * math.sqrt(2) * np.sqrt(own.freedom[0] / generator.chisquare(own.freedom[0], 100_000))
    last = generator.normal(generator.normal(0.985, sigma / math.sqrt(2)), sigma)
    within = np.mean([0.97, 0.98, bound]) >= (0.98 + 0.99 + last) / 3 - 0.01
    assert within.mean() == pytest.approx(1 - SURE, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.977, 0.971, 0.968, 0.962])
def test_probabilities_match_simulated_sweeps(mean):
    """With a flat prior: the true value is drawn around what was seen, and the seed to come around that."""
    generator = np.random.default_rng(3)
    accuracy = 0.98 + 0.008 * generator.standard_normal((5, 3))
    accuracy[:2] = AS_BASELINE, [mean - 0.004, mean + 0.004, NAN]
    seconds = np.array([3.0, 1.0, 2.0, 2.5, 2.7])[:, None] * np.exp(0.05 * generator.standard_normal((5, 3)))
    now = Measurements(objective=np.where(np.isnan(accuracy), NAN, seconds), accuracy=accuracy, baseline=0, margin=0.01)
    own, chosen = accuracies(now), 0
    for _ in range(400):
        sigma = own.error[1] * math.sqrt(2) * math.sqrt(own.freedom[1] / generator.chisquare(own.freedom[1]))
        true = generator.normal(mean, sigma / math.sqrt(2))
        played = accuracy.copy()
        played[1, 2] = generator.normal(true, sigma)
        end = Measurements(objective=seconds, accuracy=played, baseline=0, margin=0.01)
        chosen += choose(end, generator, 1_000).favourite == 1
    assert Midway(measurements=now, seeds_left=[0, 1, 0, 0, 0]).p_chosen[1] == pytest.approx(chosen / 400, abs=0.08)


def test_fastest_cell_is_chosen_without_accuracies():
    accuracy = np.full((2, 3), NAN)
    objective = np.array([[1.0, 1.1, NAN], [2.0, 2.1, 2.05]])
    prospect = Midway(
        measurements=Measurements(objective=objective, accuracy=accuracy, baseline=None, margin=0.01), seeds_left=[1, 0]
    )
    assert prospect.bound(0) is None
    known = Midway(
        measurements=Measurements(objective=objective, accuracy=accuracy, baseline=None, margin=0.01), seeds_left=[0, 0]
    )
    assert known.p_chosen.tolist() == [1.0, 0.0]
