"""What accuracies show against a margin, worked out by hand."""

from collections.abc import Callable
from typing import Any

import pandas as pd

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
