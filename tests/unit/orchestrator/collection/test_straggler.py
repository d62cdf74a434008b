from collections.abc import Callable
from typing import Any

from orchestrator.collection.collector import trials_frame
from orchestrator.collection.straggler import stragglers
from orchestrator.journal.record import TrialRecord
from sweeps.status import Status

RecordOf = Callable[..., TrialRecord]
STEP: dict[str, Any] = {"step_data_s": 0.01, "step_host_s": 0.0, "step_compute_s": 0.09}


def test_a_slow_rank_is_named_and_the_result_is_kept(record_of: RecordOf) -> None:
    slow = record_of(2, 0, metrics={"samples_per_s": 100.0, "step_imbalance_s": 0.06, "slowest_rank": 1} | STEP)
    even = record_of(2, 1, metrics={"samples_per_s": 160.0, "step_imbalance_s": 0.02, "slowest_rank": 0} | STEP)
    told = "straggler: rank 1 takes 1.6 times the median rank's time for a step"
    assert stragglers([slow, even]) == {slow.trial_id: told}
    row = trials_frame([slow, even]).iloc[0]
    assert told in row["note"] and (row["status"], row["samples_per_s"]) == ("ok", 100.0)


def test_a_slow_trial_among_the_seeds_of_its_cell_is_named(record_of: RecordOf) -> None:
    rates = [100.0, 102.0, 70.0, 98.0]
    records = [record_of(1, seed, metrics={"samples_per_s": rate}) for seed, rate in enumerate(rates)]
    (told,) = stragglers(records).items()
    assert told[0] == records[2].trial_id and "took 1.4 times as long as its cell's median" in told[1]
    assert stragglers(records[1:3]) == {}, "of two nobody knows which is the slow one"


def test_a_trial_that_is_not_ok_is_no_straggler(record_of: RecordOf) -> None:
    failed = record_of(2, 0, status=Status.FAILED, metrics={"step_imbalance_s": 9.0} | STEP)
    assert stragglers([failed, record_of(1, 0, metrics={"step_imbalance_s": 0.0})]) == {}


def test_a_slow_rank_without_a_number_and_a_slow_trials_host_are_told(record_of: RecordOf) -> None:
    """A script may tell how much slower its slowest rank is, and not which it is."""
    rates = [100.0, 100.0, 50.0]
    records = [
        record_of(2, seed, metrics={"samples_per_s": rate}, provenance={"host": "node7"})
        for seed, rate in enumerate(rates)
    ]
    slow = record_of(4, 0, metrics={"step_imbalance_s": 0.1} | STEP)
    assert stragglers([*records, slow]) == {
        records[2].trial_id: "straggler: this trial on node7 took 2.0 times as long as its cell's median",
        slow.trial_id: "straggler: the slowest rank takes 2.0 times the median rank's time for a step",
    }
