"""A results directory is read from its journal alone."""

from collections.abc import Callable

import pytest

from orchestrator.analysis.frames import frames
from orchestrator.store.journal import Journal, Kind
from orchestrator.store.layout import Layout
from orchestrator.store.record import TrialRecord
from sweeps.errors import ConfigError
from tests.unit.orchestrator.requests import request

RecordOf = Callable[..., TrialRecord]


def test_the_last_end_of_each_trial_under_the_last_config_is_compared_as_the_request_says(
    layout: Layout, record_of: RecordOf
) -> None:
    ends = [
        record_of(1, 0, metrics={"samples_per_s": 100.0}),
        record_of(2, 0, metrics={"samples_per_s": 50.0}),
        record_of(2, 0, metrics={"samples_per_s": 150.0}),
    ]
    with Journal.open(layout.journal) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": {"config": {"budget": {"epochs": 1}}}})
        journal.append(Kind.FINISHED, record_of(4, 0, metrics={"samples_per_s": 900.0}).to_json())
        journal.append(Kind.SWEEP, {"fingerprint": {"config": {"budget": {"epochs": 2}}}})  # what counts
        for end in ends:
            journal.append(Kind.FINISHED, end.to_json())
    trials, cells = frames(layout, request(scaling="weak", baseline={}))
    assert trials["samples_per_s"].tolist() == [100, 150] and cells["speedup"].tolist() == pytest.approx([1, 1.5])
    _, strong = frames(layout, request(scaling="strong", baseline={}))  # no two have the same global batch
    assert strong["speedup"].tolist() == [1, 1]


def test_where_there_is_nothing_to_show_it_says_so(layout: Layout) -> None:
    with pytest.raises(ConfigError, match="there are no results in"):
        frames(layout, request())
    with Journal.open(layout.journal) as journal:
        journal.append(Kind.STARTED, {"trial_id": "t", "attempt": 1})
    with pytest.raises(ConfigError, match="no trial has ended yet in"):
        frames(layout, request())
