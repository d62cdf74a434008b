"""What it takes to reach the target, worked out by hand."""

import math
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from orchestrator.collection.collector import collect
from orchestrator.journal.record import TrialRecord

RecordOf = Callable[..., TrialRecord]


def cells(records: list[TrialRecord], **options: Any) -> pd.DataFrame:
    return collect(records, scaling="weak", reference_batch_size=32, **options)[1].set_index("cell_id")


def test_what_it_takes_to_reach_the_target(record_of: RecordOf) -> None:
    def trial(gpus: int, seed: int, reached_s: float | None, speed: float) -> TrialRecord:
        reached = {} if reached_s is None else {"time_to_target_s": reached_s}
        metrics = {"train_s": 30.0, "samples_per_s": speed, "energy_j_per_sample": 2.0, "noise_scale": 40.0 + seed}
        return record_of(gpus, seed, metrics=metrics | reached)

    slow = [trial(1, seed, 12.0, 100) for seed in range(3)]
    fast = [trial(2, seed, 8.0, 200) for seed in range(3)]
    some = [trial(4, seed, reached, 400) for seed, reached in enumerate([2.0, 2.2, None])]
    none = [trial(8, seed, None, 800) for seed in range(3)]
    found = cells([*slow, *fast, *some, *none], price_per_gpu_hour=3.6)
    row: Any = found.loc["2-32-none"]
    # Twice the throughput, 1.5 times as fast to the target: 75% of the samples' worth is left.
    assert row["statistical_efficiency"] == pytest.approx(0.75)
    assert (row["time_to_target_expected_s"], row["time_to_target_median_s"]) == pytest.approx((8, 8))
    assert row["cost_to_target"] == pytest.approx(2 * 8 * 0.001)
    assert row["energy_to_target_j"] == pytest.approx(2 * 200 * 8)
    assert row["noise_scale_samples"] == pytest.approx(41)
    row = found.loc["4-32-none"]
    assert row["time_to_target_expected_s"] == pytest.approx((2 + 2.2 + 30) / 2)
    assert row["time_to_target_median_s"] > 2.2 and row["time_to_target_median_s_hi"] == math.inf
    assert math.isnan(row["time_to_target_s"])
    row = found.loc["8-32-none"]
    assert row[["time_to_target_expected_s", "time_to_target_median_s", "cost_to_target"]].isna().all()


def test_seeds_that_missed_the_target_are_paid_for_by_the_one_that_reached_it(record_of: RecordOf) -> None:
    """(2 + 30 + 30) s / 1; a cell of one seed has its own time, and one that nobody reached in has none."""

    def trial(gpus: int, seed: int, **reached: float) -> TrialRecord:
        return record_of(gpus, seed, metrics={"train_s": 30.0, "samples_per_s": 100.0} | reached)

    lucky = [trial(1, 0, time_to_target_s=2.0), trial(1, 1), trial(1, 2)]
    found = cells([*lucky, trial(2, 0, time_to_target_s=12.0), trial(4, 0), trial(4, 1)]).set_index("gpus")
    assert found["time_to_target_expected_s"].tolist() == pytest.approx([62.0, 12.0, math.nan], nan_ok=True)
    assert found["time_to_target_median_s"].tolist() == pytest.approx([math.nan, 12.0, math.nan], nan_ok=True)
    assert found["time_to_target_median_s_hi"].isna().all() and found["n_reached"].tolist() == [1, 1, 0]
