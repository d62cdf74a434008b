import math
from dataclasses import replace

import numpy as np
import pytest
import scipy  # its `stats` is slow, and loaded when it is used

from orchestrator.decision.cell_estimates import Measurements, Restarts, log_objectives
from orchestrator.decision.choice import choose
from orchestrator.statistics.pooling import Likeness
from orchestrator.statistics.seeds_needed import seeds_to_tell

NAN = math.nan


def measurements(objective, accuracy, baseline=0, margin=0.01):
    return Measurements(
        objective=np.array(objective, dtype=float),
        accuracy=np.array(accuracy, dtype=float),
        baseline=baseline,
        margin=margin,
    )


def chosen_of(*arguments, **named):
    return choose(measurements(*arguments, **named), np.random.default_rng(0))


def test_the_fastest_within_the_margin_is_chosen():
    # The third is fastest, and loses .05 with every seed: shown. The second loses nothing.
    choice = chosen_of([[10, 10], [5, 5], [2, 2]], [[0.9, 0.91], [0.9, 0.91], [0.85, 0.86]])
    assert choice.favourite == 1
    assert list(choice.p_within) == [1, 1, 0]
    assert list(choice.p_best) == [0, 1, 0]
    assert choice.tied.tolist() == [False, True, False]


def test_the_safe_choice_is_the_fastest_that_surely_keeps_the_margin():
    accuracy = [[0.9, 0.91, 0.92], [0.9, 0.91, 0.92], [0.892, 0.909, 0.909]]
    choice = chosen_of([[3, 3, 3.1], [2, 2, 2.1], [1, 1, 1.1]], accuracy)
    assert choice.favourite == 2 and 0.5 < choice.p_within[2] < 0.95
    assert choice.safe == 1
    assert chosen_of([[3], [2]], [[0.9], [0.9]]).safe is None  # one seed tells no probability


def test_equal_shares_of_few_samples_are_not_certain():
    """Both seeds classify as many of 144 samples correctly as the baseline's, or one less."""
    share = np.array([[140, 140], [140, 140], [140, 140], [139, 139]]) / 144
    asked = measurements([[4, 4], [3, 3.1], [2, 2.1], [1, 1.1]], share)
    apart = Likeness(batch=np.array([1.0, 2.0, 4.0, 8.0]), recipe=np.zeros(4, dtype=int))
    unknown, known = (
        choose(replace(asked, likeness=apart, samples=samples), np.random.default_rng(0)) for samples in (NAN, 144.0)
    )
    assert (known.p_within[2:] < unknown.p_within[2:] - 0.02).all() and (known.p_within >= 0.5).all()
    same = Likeness(batch=np.ones(4), recipe=np.arange(4))
    choice = choose(replace(asked, likeness=same, samples=144.0), np.random.default_rng(0))
    assert choice.p_within[2] == 1


def test_p_within_follows_students_t():
    # Paired differences .00, −.01, −.02: mean −.01, s = .01; with two cells nothing is borrowed.
    choice = chosen_of([[2, 2, 2], [1, 1, 1]], [[0.9, 0.91, 0.92], [0.9, 0.9, 0.9]], margin=0.02)
    expected = scipy.stats.t.cdf(0.01 / (0.01 / math.sqrt(3)), 2)
    assert choice.p_within[1] == pytest.approx(expected, abs=0.01)
    assert choice.favourite == 1


def test_behind_bounds_the_loss_against_the_best_cell():
    # The second is within the margin with some 20%: then the first takes twice as long as it has to, else nothing.
    choice = chosen_of([[2, 2, 2], [1, 1, 1]], [[0.9, 0.91, 0.92], [0.9, 0.9, 0.9]], margin=0.005)
    assert choice.favourite == 0 and choice.p_within[1] > 0.05
    assert choice.behind == pytest.approx(1.0)
    # Where the slower is surely behind, nothing is lost; of one seed nothing is known.
    assert chosen_of([[10, 10], [5, 5]], [[0.9, 0.91], [0.9, 0.91]]).behind == 0
    assert math.isnan(chosen_of([[10], [5]], [[0.9], [0.9]]).behind)


def test_seed_effects_common_to_all_cells_cancel():
    # Seeds differ by a factor of 8, the cells within each by 2, always: the second is surely best.
    choice = chosen_of([[2, 4, 16], [1, 2, 8]], [[NAN] * 3] * 2, baseline=None)
    assert choice.p_best[1] == 1
    assert math.isnan(choice.p_within[1])


def test_a_cell_without_values_leaves_the_others_paired():
    # A baseline whose timing is not valid has accuracies, and no objective.
    alone = chosen_of([[2, 4, 16], [1, 2, 8]], [[0.9, 0.91, 0.92]] * 2)
    beside = chosen_of([[2, 4, 16], [1, 2, 8], [NAN] * 3], [[0.9, 0.91, 0.92]] * 3)
    assert beside.log_objective.error[:2].tolist() == alone.log_objective.error.tolist() == [0, 0]
    assert math.isnan(beside.log_objective.error[2]) and beside.p_best[1] == 1


def test_tied_cells_both_count_as_best():
    choice = chosen_of([[1.0, 1.001], [1.001, 1.0], [3, 3.001]], [[0.9, 0.9], [0.92, 0.92], [0.9, 0.9]])
    assert choice.p_best[0] > 0.9 and choice.p_best[1] > 0.9


def test_cells_that_share_their_timings_are_equally_fast():
    shared, slower = [10, 12, 15], [13, 12.1, 11.9]
    accuracy = [[0.9, 0.91, 0.92], [0.9, 0.92, 0.91], [0.91, 0.9, 0.92], [0.9, 0.91, 0.92]]
    asked = measurements([shared, [*shared[:2], NAN], shared, slower], accuracy, margin=0.5)
    choice = choose(replace(asked, timing_group=np.array([0, 0, 0, 1])), np.random.default_rng(0))
    assert choice.p_best[0] == choice.p_best[1] == choice.p_best[2] > 0.4
    ratio = choice.log_objective.minus(0).intervals()
    assert ratio.lo[1] == ratio.hi[1] == 0 and ratio.lo[3] < 0 < ratio.hi[3]
    alone = chosen_of([shared, slower], accuracy[:2], margin=0.5)
    assert abs(alone.p_best[0] - choice.p_best[0]) < 0.02
    assert np.allclose(choice.log_objective.error[[0, 3]], alone.log_objective.error)


def test_equal_values_of_other_steps_or_seeds_are_measurements_of_their_own():
    values = np.array([[10, 12, 14], [10, NAN, NAN], [10, 11, NAN], [NAN, 11, 30]])
    for steps in (np.arange(4), np.array([0, 1, 2, 2])):
        means = log_objectives(values, steps)
        assert means.source.tolist() == [0, 1, 2, 3]
        assert np.allclose(means.point, np.nanmean(np.log(values), axis=1))


def test_a_cell_that_is_unlikely_to_be_the_best_does_not_tie():
    # Of two seeds the 95% interval of the ratio of times is wide enough to include 1.
    choice = chosen_of([[16, 16.8], [20, 22]], [[0.9, 0.901], [0.889, 0.893]])
    assert choice.log_objective.minus(0).intervals().lo[1] < 0 and choice.p_best[1] < 0.04
    assert not choice.ties_with(0).any()
    likelier = chosen_of([[16, 16.8], [17, 19]], [[0.9, 0.901], [0.9, 0.901]])
    assert likelier.ties_with(0).tolist() == [False, True]


def test_accuracy_chooses_if_all_objectives_tie():
    choice = chosen_of([[1.0, 1.0], [1.0, 1.0]], [[0.9, 0.9], [0.92, 0.93]])
    assert choice.tied.all() and choice.favourite == 1


def test_the_best_of_a_subset_follows_the_same_rule():
    # Of the last three, two tie, of which one is more accurate; the third is far faster and misses the margin.
    choice = chosen_of([[9, 9], [4, 4.01], [4.01, 4], [1, 1]], [[0.9, 0.91], [0.9, 0.91], [0.91, 0.92], [0.7, 0.71]])
    assert (
        choice.favourite == choice.best_of(np.array([True] * 4)) == choice.best_of(np.array([False, True, True, True]))
    )
    assert choice.favourite == 2 and choice.best_of(np.array([True, True, False, True])) == 1
    assert choice.best_of(np.array([False, False, False, True])) is None


def test_a_cell_without_an_accuracy_does_not_pass():
    choice = chosen_of([[2.0, 2.0], [1.0, 1.0], [1.001, 1.001]], [[0.9, 0.91], [NAN, NAN], [0.9, 0.91]])
    assert choice.favourite == 2 and choice.keeps_accuracy.tolist() == [True, False, True]
    assert chosen_of([[2.0, 2.0], [1.0, 1.0]], [[NAN, NAN]] * 2, baseline=None).keeps_accuracy.tolist() == [True, True]


def test_one_seed_gives_a_choice_without_probabilities():
    choice = chosen_of([[10], [5], [2]], [[0.9], [0.895], [0.7]])
    assert choice.favourite == 1
    assert np.isnan(choice.p_best).all() and math.isnan(choice.p_within[1])


def test_unequal_seeds_are_compared_unpaired():
    choice = chosen_of([[2, 2, NAN], [1, NAN, 1]], [[0.9, 0.92, NAN], [0.91, NAN, 0.93]])
    assert choice.score_difference.point[1] == pytest.approx(0.01)
    # Each has variance .0002, of two seeds: the difference of the means has .0002. Nothing is shared by seed.
    assert choice.score_difference.error[1] == pytest.approx(math.sqrt(0.0002))


def test_without_objectives_no_cell_is_chosen():
    assert chosen_of([[NAN, NAN]], [[0.9, 0.9]]).favourite is None


def test_seeds_to_tell_equal_those_computed_by_hand():
    # t(.9, 4) / √5 = .6857 and t(.9, 3) / √4 = .8189: a gap of .7 standard deviations needs five seeds.
    assert seeds_to_tell(0.7, 1.0, 0.0, 0.9, 30) == 5
    assert seeds_to_tell(-0.7, 1.0, 0.0, 0.9, 30) == 5
    assert seeds_to_tell(100.0, 1.0, 0.0, 0.9, 30) == 2
    assert seeds_to_tell(0.001, 1.0, 0.0, 0.9, 30) is None


def test_a_gap_from_few_seeds_is_not_taken_as_exact():
    # A gap of 0 from three seeds: |d| has the median .674 / √3 = .3894. t(.9, 12) / √13 = .3761 is the first below it.
    assert seeds_to_tell(0.0, 1.0, 3**-0.5, 0.9, 30) == 13
    assert seeds_to_tell(0.0, 1.0, 10**-0.5, 0.9, 30) == 30
    assert seeds_to_tell(0.0, 1.0, 0.01, 0.9, 30) is None


def test_a_cell_equal_to_the_baseline_is_surely_within_margin():
    # Other cells vary, and so would these; but with every seed they came to the same.
    same = [0.90, 0.95, 0.91]
    choice = chosen_of([[2, 2, 2], [2, 2, 2], [1, 1, 1]], [same, same, [0.80, 0.90, 0.99]], margin=0.001)
    assert choice.p_within[1] == 1


def test_pooling_leaves_the_baseline_and_equivalent_cells_unchanged():
    generator = np.random.default_rng(0)
    accuracy = 0.9 - 0.004 * np.arange(6)[:, None] + 0.003 * generator.standard_normal((6, 3))
    equivalent = np.vstack([accuracy, accuracy[0]])
    batch = np.append(32.0 * 2 ** np.arange(6), 32.0)
    likeness = Likeness(batch=batch, recipe=np.append(np.zeros(6, dtype=int), 1))
    objective = np.exp(0.01 * generator.standard_normal((7, 3))) / (1 + np.append(np.arange(6), 0))[:, None]
    alike = measurements(objective, equivalent, margin=1e-9)
    choice = choose(replace(alike, likeness=likeness), np.random.default_rng(0))
    assert choice.p_within[[0, 6]].tolist() == [1, 1] and (choice.p_within[1:6] < 0.5).all()
    alone = choose(alike, np.random.default_rng(0))
    # The reported difference of a cell is its own, without pooling.
    assert choice.score_difference.point.tolist() == alone.score_difference.point.tolist()


def test_unknown_errors_prevent_pooling():
    likeness = Likeness(batch=32.0 * 2 ** np.arange(6), recipe=np.zeros(6, dtype=int))
    one_seed = measurements(np.ones((6, 1)), 0.9 - 0.01 * np.arange(6)[:, None])
    choice = choose(replace(one_seed, likeness=likeness), np.random.default_rng(0))
    assert np.isnan(choice.p_within[1:]).all() and choice.favourite == 0


def test_few_seeds_that_reached_the_target_make_the_expected_time_uncertain():
    """A missed seed takes as long as ten that reach it: 2 of 3 hits are 6 times as long, 1 of 3 are 21 times."""
    missed = Restarts(hits=np.array([2.0, 3.0]), n=np.array([3.0, 3.0]), missed=np.array([10.0, 10.0]))
    drawn = missed.draws(np.random.default_rng(0), 20_000)
    shares = np.random.default_rng(1).beta([2.5, 3.5], [1.5, 0.5], (20_000, 2))
    wanted = np.log((1 + 10 * (1 - shares) / shares) / [6, 1])
    assert np.quantile(drawn, [0.1, 0.5, 0.9], axis=0) == pytest.approx(
        np.quantile(wanted, [0.1, 0.5, 0.9], axis=0), abs=0.05
    )
    all_reached = replace(missed, hits=np.array([3.0, 3.0]))
    assert not all_reached.draws(np.random.default_rng(0), 10).any()


def of_large_batches(collapsed):
    """Six cells by batch; seeds marked here lost 0.035, the others vary by 0.001. Larger batches are faster."""
    marks = np.array(collapsed, dtype=bool)
    accuracy = 0.9 + 0.001 * np.random.default_rng(2).standard_normal(marks.shape) - 0.035 * marks
    likeness = Likeness(batch=2.0 ** np.arange(6), recipe=np.zeros(6, dtype=int))
    asked = measurements((7 - np.arange(6.0))[:, None] * np.array([1, 1.01, 0.99]), accuracy)
    return choose(replace(asked, likeness=likeness, collapsed=marks), np.random.default_rng(0))


def test_a_cell_without_collapse_is_distrusted_if_those_beside_it_collapse():
    none, one, two, last = [0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0]
    sound = of_large_batches([none] * 6)
    once = of_large_batches([none, none, none, none, one, last])
    often = of_large_batches([none, none, none, one, two, last])
    assert sound.favourite == once.favourite == 5  # one collapse may be chance
    assert often.favourite not in (3, 4, 5) and not often.keeps_accuracy[5] and often.keeps_accuracy[:2].all()


def test_unequal_numbers_of_seeds_raise_the_bar():
    choice = chosen_of([[2, 2, 2], [1, 1, 1]], [[0.9, 0.9, 0.9], [0.9, 0.9, 0.9]])
    later = chosen_of([[2, 2, NAN], [1, 1, 1]], [[0.9, 0.9, NAN], [0.9, 0.9, 0.9]])
    assert choice.is_sure(0.91) and not choice.is_sure(0.89)
    assert later.is_sure(0.96) and not later.is_sure(0.94) and not later.is_sure(NAN)
    disturbed = chosen_of([[2, 2, NAN], [1, 1, 1]], [[0.9, 0.9, 0.9], [0.9, 0.9, 0.9]])
    assert disturbed.needed_probability == choice.needed_probability
    one_each = chosen_of([[NAN, 1.1, 1.05], [1, 1, 1]], [[0.9, 0.9, NAN], [0.9, 0.9, 0.9]])
    assert one_each.needed_probability == choice.needed_probability


def test_the_loss_against_the_most_accurate_cell_is_known():
    choice = chosen_of([[3, 3, 3], [1, 1, 1], [2, 2, 2]], [[0.9, 0.9, 0.9], [0.91, 0.91, 0.91], [0.95, 0.95, 0.95]])
    assert (choice.favourite, choice.most_accurate) == (1, 2)
    assert choice.below_best == pytest.approx(0.04)
