"""Samples to the target, worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from orchestrator.collection.samples_to_target import samples_to_target, start_up_s


def trial(**other):
    """Ten epochs of 1,000 samples: the first of 30 s, of which 28 compile, then nine of 2 s."""
    given = {"epochs": 10, "samples": 10_000, "first_epoch_s": 30.0, "train_s": 48.0, "samples_per_s": 500.0}
    return given | {"time_to_target_s": math.nan} | other


def test_start_up_is_no_samples():
    # Reached at the end of the fourth epoch, after 30 + 3 · 2 s; by the rate it would be 18,000 samples.
    trials = pd.DataFrame([trial(time_to_target_s=36.0), trial(time_to_target_s=30.0), trial()])
    np.testing.assert_allclose(samples_to_target(trials), [4000, 1000, math.nan])
    np.testing.assert_allclose(start_up_s(trials), [28, 28, 28])


def test_epochs_that_vary_in_length_are_still_whole_ones():
    assert samples_to_target(pd.DataFrame([trial(time_to_target_s=36.7)])) == pytest.approx([4000])
    # Not more epochs than were trained.
    assert samples_to_target(pd.DataFrame([trial(time_to_target_s=60.0)])) == pytest.approx([10_000])


def test_of_two_epochs_the_second_is_one_too():
    two = trial(epochs=2, samples=2000, train_s=32.0, time_to_target_s=32.0)
    assert samples_to_target(pd.DataFrame([two])) == pytest.approx([2000])


def test_an_epoch_that_was_cut_short_counts_as_far_as_it_went():
    # Nine epochs and a half, 30 s and 17 s: reached in the last, or at the end of the fourth.
    short = {"epochs": 9.5, "samples": 9500, "train_s": 47.0}
    trials = pd.DataFrame([trial(**short, time_to_target_s=47.0), trial(**short, time_to_target_s=36.0)])
    assert samples_to_target(trials) == pytest.approx([9500, 4000])
    within_the_first = trial(epochs=0.25, samples=250, first_epoch_s=math.nan, train_s=1.0, time_to_target_s=1.0)
    assert samples_to_target(pd.DataFrame([within_the_first])) == pytest.approx([250])


def test_one_epoch_is_one_epoch_whatever_it_took():
    one = trial(epochs=1, samples=1000, train_s=30.0, time_to_target_s=30.0)
    assert samples_to_target(pd.DataFrame([one])) == pytest.approx([1000])
    assert math.isnan(start_up_s(pd.DataFrame([one]))[0])


def test_without_epochs_the_rate_stands_in():
    trials = pd.DataFrame([{"time_to_target_s": 4.0, "samples_per_s": 500.0}])
    assert samples_to_target(trials) == pytest.approx([2000])


def test_one_epoch_has_no_start_up_even_where_the_training_took_longer():
    one = pd.DataFrame([trial(epochs=1, samples=1000, first_epoch_s=30.0, train_s=31.0)])
    assert math.isnan(start_up_s(one)[0])


def test_epochs_shorter_than_a_second_are_epochs_too():
    # 30 s, and nine epochs of .2 s: after 30.6 s four have passed.
    quick = pd.DataFrame([trial(train_s=31.8, time_to_target_s=30.6)])
    assert samples_to_target(quick) == pytest.approx([4000]) and start_up_s(quick) == pytest.approx([29.8])


def test_where_later_epochs_took_no_time_the_rate_stands_in():
    """As of a script that tells its epochs at its end, all at once."""
    at_once = pd.DataFrame([trial(train_s=30.0, time_to_target_s=30.0)])
    assert samples_to_target(at_once) == pytest.approx([15_000]) and math.isnan(start_up_s(at_once)[0])
