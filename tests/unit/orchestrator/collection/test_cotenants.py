import math
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.collection.collector import collect
from orchestrator.collection.cotenants import cotenants
from orchestrator.journal.record import TrialRecord
from orchestrator.tables.speedup import speedup_markdown
from sweeps.status import Status

RecordOf = Callable[..., TrialRecord]


def ran(record_of: RecordOf, seed: int, began_s: int, ended_s: int, host: Any = "a", **given: Any) -> TrialRecord:
    at = {
        "wall_s": float(ended_s - began_s),
        "finished_at": f"2026-01-01T00:{ended_s // 60:02}:{ended_s % 60:02}+00:00",
    }
    return record_of(1, seed, **{**at, "provenance": {"host": host, "device_model": "H200"}, **given})


def test_those_that_overlap_on_a_host_have_met(record_of: RecordOf) -> None:
    records = [
        ran(record_of, 0, 0, 100),
        ran(record_of, 1, 50, 150),
        ran(record_of, 2, 149, 200),  # begins as the one before ends
        ran(record_of, 3, 0, 200, host="b"),
        ran(record_of, 4, 60, 61),  # too short to tell
        ran(record_of, 5, 20, 40),
    ]
    assert cotenants(records) == [2, 1, 0, 0, 0, 1]


def test_a_gang_on_several_machines_meets_whoever_is_on_any_of_them(record_of: RecordOf) -> None:
    gang = {"provenance": {"host": "a", "machine": "0a", "machines": "0a 0b", "device_model": "H200"}}
    other = {"provenance": {"host": "b", "machine": "0b", "device_model": "H200"}}
    records = [ran(record_of, 0, 0, 100, **gang), *(ran(record_of, seed, 0, 100, **other) for seed in (1, 2))]
    assert cotenants(records) == [2, 2, 2]
    assert cotenants(records[:2]) == [1, 1]


@pytest.mark.parametrize("change", [{"finished_at": ""}, {"host": None}, {"wall_s": math.nan}])
def test_nobody_knows_without_host_or_time(record_of: RecordOf, change: dict[str, Any]) -> None:
    found = cotenants([ran(record_of, 0, 0, 100, **change), ran(record_of, 1, 0, 100)])
    assert math.isnan(found[0]) and found[1] == 0


def test_trials_and_table_tell_of_it(record_of: RecordOf) -> None:
    metrics = {"samples_per_s": 100.0}
    records = [ran(record_of, seed, 0, 100, metrics=metrics) for seed in range(3)]
    trials, cells = collect(records, scaling="weak")
    assert list(trials["co_tenants"]) == [2, 2, 2]
    assert "ran beside up to 2 other trials on the node's other devices" in speedup_markdown(cells)
    alone = collect(records[:1], scaling="weak")[1]
    assert "other devices" not in speedup_markdown(alone)


def test_a_trial_that_never_ran_has_none(record_of: RecordOf) -> None:
    record = ran(record_of, 0, 0, 0, status=Status.INFEASIBLE, provenance={})
    assert math.isnan(cotenants([record])[0])


def test_machines_of_one_name_are_told_apart_where_they_are_known(record_of: RecordOf) -> None:
    here, there = ({"host": "vm", "machine": machine, "device_model": "H200"} for machine in ("0a", "0b"))
    records = [ran(record_of, seed, 0, 100, provenance=where) for seed, where in enumerate((here, here, there))]
    assert cotenants(records) == [1, 1, 0]


def test_containers_of_one_machine_meet_on_it(record_of: RecordOf) -> None:
    pods = ({"host": host, "machine": "0a", "device_model": "H200"} for host in ("pod-a", "pod-b"))
    assert cotenants([ran(record_of, seed, 0, 100, provenance=pod) for seed, pod in enumerate(pods)]) == [1, 1]
