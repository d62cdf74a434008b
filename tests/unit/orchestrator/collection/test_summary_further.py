"""Equivalence and what it takes to reach the target, worked out by hand."""

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


def accuracies(record_of: RecordOf, gpus: int, values: list[float]) -> list[TrialRecord]:
    return [record_of(gpus, seed, metrics={"accuracy": value}) for seed, value in enumerate(values)]


def test_equivalence_against_the_reference(record_of: RecordOf) -> None:
    reference = accuracies(record_of, 1, [0.90, 0.91, 0.92])
    # Differences −.001, .000, .001: error .000577, t(.95, 2) = 2.92, so ±.0017 around 0.
    alike = accuracies(record_of, 2, [0.899, 0.910, 0.921])
    # Differences −.05, −.06, −.07: ±.0169 around −.06, wholly below −.01.
    worse = accuracies(record_of, 4, [0.85, 0.85, 0.85])
    found = cells([*reference, *alike, *worse], margin=0.01)
    assert list(found["accuracy_verdict"]) == ["", "equivalent", "worse"]
    assert found["accuracy_power"].iloc[1] > 0.99 and 0 < found["accuracy_power"].iloc[2] < 0.5
    assert found["accuracy_seeds_to_settle"].isna().all()
    narrow = cells([*reference, *alike, *worse], margin=0.001)
    assert narrow["accuracy_verdict"].iloc[1] == "inconclusive"
    # Pairs that vary by the margin itself: 11 of them show equivalence with probability .85, 10 with .795.
    assert narrow["accuracy_seeds_to_settle"].iloc[1] == 11


def test_one_seed_has_no_verdict(record_of: RecordOf) -> None:
    found = cells([*accuracies(record_of, 1, [0.9]), *accuracies(record_of, 2, [0.9])])
    assert list(found["accuracy_verdict"]) == ["", ""]
    assert found["accuracy_power"].isna().all()


def test_seeds_that_are_not_the_same_are_tested_by_welch(record_of: RecordOf) -> None:
    other = [record_of(2, seed, metrics={"accuracy": value}) for seed, value in ((5, 0.80), (6, 0.81), (7, 0.82))]
    found = cells([*accuracies(record_of, 1, [0.90, 0.91, 0.92]), *other])
    assert found["accuracy_verdict"].iloc[1] == "worse"


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
