"""Figures that follow from a trial's metrics."""

import math

import pytest

from orchestrator.store.trial_metrics import metric_value, samples_to_target, time_to_target_s

# Ten epochs of 1,000 samples: the first of 30 s, of which 28 compile, then nine of 2 s.
TRIAL = {"epochs": 10, "samples": 10_000, "first_epoch_s": 30.0, "train_s": 48.0, "samples_per_s": 500.0}


@pytest.mark.parametrize(
    ("metrics", "samples"),
    [
        ({}, None),
        ({"time_to_target_s": 36.0}, 4000),  # 30 + 3 · 2 s; by the rate it would be 18,000 samples
        ({"time_to_target_s": 30.0}, 1000),
        ({"time_to_target_s": 36.1}, 4000),  # the end of an epoch
        ({"time_to_target_s": 37.0}, 4500),  # within an epoch, as a command may measure it
        ({"time_to_target_s": 37.0, "epochs_to_target": 4}, 4000),
        ({"time_to_target_s": 37.0, "epochs_to_target": 4, "train_s": None}, 4000),
        ({"time_to_target_s": math.inf}, None),
        ({"time_to_target_s": 36.0, "epochs": math.inf}, 18_000),
        ({"epochs": 1, "samples": 1000, "train_s": 30.0, "time_to_target_s": 6.0}, 200),
        ({"time_to_target_s": 60.0}, 10_000),  # no more than were trained
        ({"epochs": 2, "samples": 2000, "train_s": 32.0, "time_to_target_s": 32.0}, 2000),
        ({"epochs": 9.5, "samples": 9500, "train_s": 47.0, "time_to_target_s": 47.0}, 9500),  # the last is a half
        ({"epochs": 9.5, "samples": 9500, "train_s": 47.0, "time_to_target_s": 36.0}, 4000),
        ({"epochs": 0.25, "samples": 250, "first_epoch_s": None, "train_s": 1.0, "time_to_target_s": 1.0}, 250),
        ({"epochs": 1, "samples": 1000, "train_s": 30.0, "time_to_target_s": 30.0}, 1000),
        ({"epochs": None, "samples": None, "time_to_target_s": 4.0}, 2000),  # by the rate
        ({"train_s": 31.8, "time_to_target_s": 30.6}, 4000),  # epochs of 0.2 s
        ({"train_s": 30.0, "time_to_target_s": 30.0}, 15_000),  # all epochs were reported at the end: by the rate
    ],
)
def test_samples_to_the_target_count_epochs(metrics, samples):
    assert samples_to_target(TRIAL | metrics) == (samples if samples is None else pytest.approx(samples))


def test_time_to_the_target_is_without_the_warm_up_of_the_first_epoch():
    assert time_to_target_s(TRIAL | {"time_to_target_s": 36.0}) == pytest.approx(8)  # 4,000 samples, 500 a second
    assert time_to_target_s(TRIAL | {"time_to_target_s": 36.0, "samples_per_s": None}) == 36
    assert time_to_target_s(TRIAL) is None


def test_a_metric_that_is_no_number_is_not_measured():
    values = {"rate": 2, "text": "2", "damaged": 10**400, "endless": math.inf}
    assert [metric_value(values, name) for name in (*values, "none")] == [2.0, None, None, None, None]
