"""Which figures a disturbance changes, and which seeds' figures count then."""

import math

import numpy as np
import pandas as pd
import pytest

from orchestrator.analysis.validity import (
    is_invalid,
    is_ratio_scaled,
    is_timed,
    is_valid,
    timing_counts,
    with_valid_timings,
)


@pytest.mark.parametrize(
    ("column", "timed", "by_ratio"),
    [
        ("samples_per_s", True, True),
        ("epoch_s", True, True),
        ("time_to_target_s", True, True),
        ("energy_j_per_sample", True, True),
        ("power_w", True, True),
        ("mfu", True, True),
        ("gpu_util", True, False),
        ("step_data_s", True, False),
        ("speedup", False, True),
        ("efficiency", False, True),
        ("wall_s", False, True),
        ("accuracy", False, False),
        ("peak_memory_gb", False, False),
        ("step_count", False, False),
    ],
)
def test_columns_are_timed_and_ratio_scaled_by_name(column, timed, by_ratio):
    assert (is_timed(column), is_ratio_scaled(column)) == (timed, by_ratio)


def test_without_a_timing_its_validity_is_unknown():
    known = pd.Series([True, False, None], dtype="object")
    assert is_valid(known).tolist() == [True, False, False] and is_invalid(known).tolist() == [False, True, False]


def test_invalid_timings_count_if_no_seed_is_valid():
    trials = pd.DataFrame(
        {
            "cell_id": ["a", "a", "a", "b", "b", "c"],
            "status": ["ok", "ok", "oom", "ok", "ok", "oom"],
            "timing_valid": [True, False, True, False, None, True],
            "samples_per_s": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "accuracy": 0.5,
            "wall_s": 9.0,
        }
    )
    assert timing_counts(trials).tolist() == [True, False, False, True, True, False]
    sound = with_valid_timings(trials)
    np.testing.assert_array_equal(sound.samples_per_s, [1.0, math.nan, 3.0, 4.0, 5.0, 6.0])
    assert (sound.accuracy == 0.5).all() and (sound.wall_s == 9.0).all()
    alike = trials.assign(timing_valid=True)
    assert with_valid_timings(alike) is alike
