"""Collapsed seeds against hand-made tables, and the share of seeds that collapse against SciPy."""

import math

import numpy as np
import pytest
import scipy  # its `stats` is slow, and loaded when it is used

from orchestrator.statistics.collapses import collapsed, share_draws
from orchestrator.statistics.intervals import jeffreys

NAN = math.nan


def test_seeds_far_below_the_others_are_found():
    values = np.array([[0.90, 0.91, 0.10], [0.92, 0.91, 0.90], [0.10, 0.11, 0.90], [0.90, NAN, 0.20], [0.3, NAN, NAN]])
    expected = np.zeros(values.shape, dtype=bool)
    expected[0, 2] = expected[2, 0] = expected[2, 1] = expected[3, 2] = True
    assert (collapsed(values, 0.01) == expected).all()


def test_a_seed_that_only_cells_of_one_seed_have_judges_nothing():
    values = np.full((7, 3), NAN)
    values[:6, :2] = 0.9 - np.linspace(0, 0.002, 12).reshape(6, 2)
    values[2, 1], values[6, 2] = 0.1, 0.5
    assert np.argwhere(collapsed(values, 0.01)).tolist() == [[2, 1]]


def test_drops_that_seeds_usually_show_are_no_collapse():
    noisy = np.array([[0.5, 0.8, 0.7], [0.9, 0.6, 0.7], [0.6, 0.9, 0.8]])
    assert not collapsed(noisy, 0.01).any()
    assert not collapsed(np.full((4, 3), 0.9), 0.0).any()
    # A drop of less than three margins does not decide anything.
    assert not collapsed(np.array([[0.9, 0.9, 0.875], [0.9, 0.9, 0.9]]), 0.01).any()


def test_two_seeds_do_not_judge_a_loss():
    """Losses of GPT-2 early in its training: those at the largest batch differ more than those at smaller ones."""
    small, large = [[4.29, 4.34], [4.42, 4.47], [4.30, 4.32], *[[5.01, 5.06]] * 3], [[7.63, 6.24], [7.66, 6.41]]
    losses = np.array([*small, *large, [6.53, 6.46]])
    assert np.argwhere(collapsed(-losses, 0.05)).tolist() == [[6, 0], [7, 0]]
    assert not collapsed(-losses, 0.05, fewest=3).any()


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_all_seeds_of_a_cell_but_one_may_collapse(seeds):
    values = np.full((8, seeds), 0.9) - np.linspace(0, 0.002, 8 * seeds).reshape(8, seeds)
    hits = min(seeds - 1, 8)
    values[5, :hits] -= 0.04
    assert np.argwhere(collapsed(values, 0.01)).tolist() == [[5, seed] for seed in range(hits)]


def test_a_third_of_the_seeds_of_most_cells_may_collapse():
    hits = np.array([[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]])
    values = 0.9 - np.linspace(0, 0.002, 24).reshape(8, 3)
    assert (collapsed(values - 0.04 * hits, 0.01) == (hits == 1)).all()


def test_what_a_seed_does_to_all_cells_is_no_collapse():
    generator = np.random.default_rng(0)
    values = 0.9 + 0.002 * generator.standard_normal((8, 3)) - np.array([0.0, 0.2, 0.0])
    assert not collapsed(values, 0.01).any()
    values[4, 2] = 0.1
    assert np.argwhere(collapsed(values, 0.01)).tolist() == [[4, 2]]


def test_the_share_of_collapsed_seeds_has_jeffreys_interval():
    assert jeffreys(1, 3) == pytest.approx(scipy.stats.beta(1.5, 2.5).interval(0.95))
    draws = share_draws(np.array([1.0, 2.0]), np.array([3.0, 10.0]), np.random.default_rng(0), 20_000)
    assert draws.mean(axis=0) == pytest.approx([1.5 / 4, 2.5 / 11], abs=0.01)
