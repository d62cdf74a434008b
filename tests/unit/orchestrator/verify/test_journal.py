import pytest

from orchestrator.journal.line import Kind, Record
from orchestrator.verify.journal import of_the_plan, read


def sweep(rerun: str | list[str] = "none") -> Record:
    return Record(kind=Kind.SWEEP, value={"asked": {}, "rerun": rerun})


def started(attempt: int = 1, trial_id: str = "a") -> Record:
    return Record(kind=Kind.STARTED, value={"trial_id": trial_id, "attempt": attempt})


def retried(attempt: int = 1) -> Record:
    return Record(kind=Kind.RETRIED, value={"trial_id": "a", "attempt": attempt, "cause": "crash"})


def finished(attempt: int = 1, status: str = "ok", trial_id: str = "a") -> Record:
    return Record(kind=Kind.FINISHED, value={"trial_id": trial_id, "attempt": attempt, "status": status})


ENDED = Record(kind=Kind.ENDED, value={"missing": 0})
SPOILED = Record(kind=Kind.SPOILED, value={"trial_ids": ["a"]})


@pytest.mark.parametrize(
    "records",
    [
        [],
        [sweep(), started(), finished(), ENDED],
        [sweep(), started(), sweep(), started(2), finished(2)],
        [sweep(), started(), retried(), started(2), retried(2), started(3), finished(3, "failed")],
        [sweep(), started(), finished(), sweep("all"), started(2), finished(2)],
        [sweep(), started(), finished(1, "failed"), sweep("failed"), started(2), finished(2)],
        [sweep(), started(), finished(), sweep(["a", "c"]), started(2), finished(2)],
        [sweep(), finished(0, "infeasible"), sweep(), started(), finished()],
        [sweep(), started(), started(1, "b"), finished(1, "oom", "b"), finished()],
        [sweep(), started(), finished(), SPOILED, started(2), finished(2), ENDED],
        [sweep(), started(), finished(), SPOILED, started(2), sweep(), ENDED],
        [sweep(), Record(kind="of a later version", value={}), ENDED],
    ],
)
def test_what_drivers_write_is_in_order(records: list[Record]) -> None:
    assert read(records).violations == []


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([sweep(), started(), finished(), finished()], "record 4: trial a has a second terminal record"),
        ([sweep(), started(), finished(), sweep(), started(2)], "record 5: trial a was started again after it had"),
        ([sweep(), started(), finished(1, "oom"), sweep("failed"), started(2)], "had ended as oom"),
        ([sweep(), started(), finished(), sweep(["b"]), started(2)], "record 5: trial a was started again after it"),
        ([sweep(), finished()], "attempt 1 ended as finished, and had not been started"),
        ([sweep(), started(), started(3)], "attempt 3 follows attempt 1"),
        ([sweep(), started(), retried(), finished()], "attempt 1 ended as finished, and had not been started"),
        ([sweep(), Record(kind=Kind.FINISHED, value={})], "record 2: a finished record that makes no sense"),
        ([sweep(), started(), finished(1, "grand")], "'grand' is not a valid Status"),
    ],
)
def test_what_must_not_be_is_named(records: list[Record], told: str) -> None:
    (violation,) = read(records).violations
    assert told in violation


def test_an_ended_sweep_has_an_end_for_all_it_planned() -> None:
    assert read([sweep(), ENDED]).ended == 0
    assert read([sweep(), ENDED, sweep()]).ended is None
    assert list(of_the_plan(["a", "b"], ["a", "b", "old"], 0)) == []
    assert list(of_the_plan(["a", "b"], ["a"], 1)) == []
    (violation,) = of_the_plan(["a", "b"], ["a"], 0)
    assert violation == "the sweep has ended, and 1 planned trials have no end: b"
