from dataclasses import asdict

from orchestrator.journal.history import ends_under
from orchestrator.journal.journal import terminal
from orchestrator.journal.line import Kind, Record
from orchestrator.journal.soundness import sound_ends
from orchestrator.journal.standing import standing
from sweeps.status import Status

ASKED = {"config": {"epochs": 1}}
SWEEP = Record(kind=Kind.SWEEP, value={"asked": ASKED})
SPOILED = Record(kind=Kind.SPOILED, value={"trial_ids": ["1-32-none-0"]})


def end(record_of, status, attempt=1, **fields):
    record = record_of(status=status, attempt=attempt, trial_id="1-32-none-0", **fields)
    return Record(kind=Kind.FINISHED, value=asdict(record) | {"status": status.value})


def read(records):
    """The end of the one trial, by all who ask for it."""
    (first,), (second,), (third,) = (
        terminal(records).values(),
        ends_under(records, ASKED).values(),
        sound_ends(records, ASKED)[0].values(),
    )
    assert first == second == third
    return first


def test_a_rerun_of_a_spoiled_trial_replaces_its_row_if_it_is_ok(record_of):
    again = end(record_of, Status.OK, 2, metrics={"samples_per_s": 2.0})
    found = read([SWEEP, end(record_of, Status.OK, metrics={"samples_per_s": 1.0}), SPOILED, again])
    assert (found.attempt, found.metrics) == (2, {"samples_per_s": 2.0})


def test_else_the_ok_row_is_kept_and_says_so(record_of):
    for status in (Status.FAILED, Status.OOM, Status.TIMEOUT, Status.SKIPPED, Status.INFEASIBLE, Status.DIVERGED):
        ok = end(record_of, Status.OK, metrics={"samples_per_s": 1.0}, note="two cores busy")
        found = read([SWEEP, ok, SPOILED, end(record_of, status, 2, note="why")])
        assert (found.status, found.attempt, found.metrics) == (Status.OK, 1, {"samples_per_s": 1.0})
        assert found.note == f"two cores busy; run once more, which ended as {status.value}: why"


def test_a_spoiled_trial_that_a_budget_kept_from_running_once_more_is_not_said_to_have_run(record_of):
    found = read([SWEEP, end(record_of, Status.OK), SPOILED, end(record_of, Status.SKIPPED, wall_s=0.0, note="why")])
    assert (found.status, found.note) == (Status.OK, "not run once more: skipped: why")


def test_whoever_asks_for_a_rerun_gets_its_end(record_of):
    ok, failed = end(record_of, Status.OK), end(record_of, Status.FAILED, 2)
    assert read([SWEEP, ok, SWEEP, failed]).status is Status.FAILED
    assert read([SWEEP, ok, SPOILED, SWEEP, failed]).status is Status.FAILED, "the driver died before the rerun"
    assert read([SWEEP, ok, SPOILED, failed, SWEEP, end(record_of, Status.FAILED, 3)]).attempt == 3


def test_a_trial_that_was_not_ok_gains_nothing(record_of):
    assert read([SWEEP, end(record_of, Status.OOM), SPOILED, end(record_of, Status.FAILED, 2)]).status is Status.FAILED


def test_what_has_no_sense_passes_through():
    odd = [Record(kind=Kind.FINISHED, value=3), Record(kind=Kind.SPOILED, value={"trial_ids": 3}), SPOILED]
    assert list(standing(odd)) == odd


def test_a_result_stays_one_where_the_trial_was_asked_for_again_and_left_out(record_of):
    oom = end(record_of, Status.OOM, note="too large")
    for left_out in (Status.SKIPPED, Status.INFEASIBLE):
        again = end(record_of, left_out, wall_s=0.0, note="why")
        found = read([SWEEP, oom, SWEEP, again, SWEEP, end(record_of, left_out, wall_s=0.0)])
        assert (found.status, found.attempt) == (Status.OOM, 1)
        assert found.note == f"too large; not run again when asked for: {left_out.value}"
        assert read([SWEEP, oom, SWEEP, again]).note.endswith(f"{left_out.value}: why")
        assert read([SWEEP, end(record_of, Status.FAILED), SWEEP, again]).status is left_out


def test_one_that_was_ended_early_when_asked_for_again_ended_so(record_of):
    assert read([SWEEP, end(record_of, Status.OK), SWEEP, end(record_of, Status.SKIPPED, 2)]).status is Status.SKIPPED
