"""Epochs worked out by hand: 390 steps of 128 are one, at 64 steps a second."""

import math

import pandas as pd
import pytest

from orchestrator.collection.collector import trials_frame
from orchestrator.collection.epochs import epochs_trained
from sweeps.status import Status

EPOCH = {"epoch_s": 390 / 64, "samples_per_s": 64 * 128.0}


def of_steps(steps, epochs, **other):
    return {"epochs": float(epochs), "steps": float(steps), "samples": 128.0 * steps, **EPOCH, **other}


def epochs_of(*rows):
    return epochs_trained(pd.DataFrame(rows)).tolist()


def test_a_begun_epoch_counts_as_far_as_it_went():
    rows = of_steps(100, 1), of_steps(390, 1), of_steps(389, 1), of_steps(10 * 390 + 39, 11)
    assert epochs_of(*rows) == pytest.approx([100 / 390, 1, 389 / 390, 10.1])
    assert epochs_of(of_steps(39_000, 100)) == [100]  # exactly: a claim may ask for 100


def test_models_trained_side_by_side_share_no_steps():
    two = of_steps(100, 1) | {"samples": 2 * 128.0 * 100, "samples_per_s": 2 * 64 * 128.0}
    assert epochs_of(two) == pytest.approx([100 / 390])


def test_what_was_measured_apart_from_each_other_does_not_correct_what_was_reported():
    # A command's own rate: 390.2 steps an epoch would be no whole number of them.
    assert epochs_of(of_steps(3900, 10, samples_per_s=64.03 * 128)) == [10]
    long = {"epoch_s": 1e6 / 64, "samples_per_s": 64 * 128 * 1.0000003}  # a third of a step off, of a million
    assert epochs_of(of_steps(9_990_000, 10) | long) == [10]
    assert epochs_of(of_steps(100, 1, epoch_s=math.nan), of_steps(100, 1) | {"samples": 0.0}) == [1, 1]
    assert math.isnan(epochs_of(of_steps(100, math.nan))[0])


def test_earlier_versions_told_the_time_of_a_part_as_that_of_the_first_epoch(record_of):
    records = [
        record_of(seed=seed, status=Status.OK, metrics=of_steps(steps, 1, first_epoch_s=7.0))
        for seed, steps in enumerate((100, 390))
    ]
    frame = trials_frame(records)
    assert frame["epochs"].tolist() == pytest.approx([100 / 390, 1])
    assert frame["first_epoch_s"].isna().tolist() == [True, False]
