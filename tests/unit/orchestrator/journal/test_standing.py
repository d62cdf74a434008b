from dataclasses import asdict

from orchestrator.journal.history import ends_under
from orchestrator.journal.journal import terminal
from orchestrator.journal.line import Kind, Record
from orchestrator.journal.soundness import sound_ends
from orchestrator.journal.standing import repeated, standing
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


def test_in_early_journals_a_further_attempt_at_a_spoiled_trial_replaces_its_row_if_it_is_ok(record_of):
    again = end(record_of, Status.OK, 2, metrics={"samples_per_s": 2.0})
    found = read([SWEEP, end(record_of, Status.OK, metrics={"samples_per_s": 1.0}), SPOILED, again])
    assert (found.attempt, found.metrics) == (2, {"samples_per_s": 2.0})


def test_else_the_ok_row_is_kept_and_says_so(record_of):
    for status in (Status.FAILED, Status.OOM, Status.TIMEOUT, Status.SKIPPED, Status.INFEASIBLE, Status.DIVERGED):
        ok = end(record_of, Status.OK, metrics={"samples_per_s": 1.0}, note="two cores busy")
        found = read([SWEEP, ok, SPOILED, end(record_of, status, 2, note="why")])
        assert (found.status, found.attempt, found.metrics) == (Status.OK, 1, {"samples_per_s": 1.0})
        assert found.note == f"two cores busy; a repetition ended as {status.value}: why"


def test_a_spoiled_trial_that_a_budget_kept_from_running_once_more_is_not_said_to_have_run(record_of):
    found = read([SWEEP, end(record_of, Status.OK), SPOILED, end(record_of, Status.SKIPPED, wall_s=0.0, note="why")])
    assert (found.status, found.note) == (Status.OK, "not repeated: skipped: why")


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
        assert found.note == f"too large; not run again, although requested: {left_out.value}"
        assert read([SWEEP, oom, SWEEP, again]).note.endswith(f"{left_out.value}: why")
        assert read([SWEEP, end(record_of, Status.FAILED), SWEEP, again]).status is left_out


def test_one_that_was_ended_early_when_asked_for_again_ended_so(record_of):
    assert read([SWEEP, end(record_of, Status.OK), SWEEP, end(record_of, Status.SKIPPED, 2)]).status is Status.SKIPPED


FIRST = {"samples_per_s": 1.0, "foreign_cpu": 0.4, "foreign_cpu_by": "tar", "step_s": 3.0, "accuracy": 0.9, "steps": 7}
SECOND = {"samples_per_s": 2.0, "foreign_cpu": 0.0, "step_s": 1.0, "accuracy": 0.1, "train_s": 5.0}
MERGED = {"samples_per_s": 2.0, "foreign_cpu": 0.0, "step_s": 1.0, "accuracy": 0.9, "steps": 7}


def timed(status=Status.OK, **fields):
    value = {"trial_id": "other", "times": "1-32-none-0", "status": status.value, "note": "", "spoiled": ""}
    value |= {"repeats": "window"}
    more = {"timing": "exclusive", "metrics": SECOND, "provenance": {"host": "b"}, "gpus": 1, "wall_s": 4.0}
    return Record(kind=Kind.TIMED, value=value | more | fields)


def test_a_repetition_that_only_times_gives_its_row_that_timing_and_nothing_else(record_of):
    ok = end(record_of, Status.OK, metrics=FIRST, note="a remark", wall_s=100.0, provenance={"host": "a"})
    found = read([SWEEP, ok, timed()])
    assert found.metrics == MERGED and (found.timing, found.provenance) == ("exclusive", {"host": "b"})
    assert (found.attempt, found.wall_s, found.note) == (1, 100.0, "a remark; timed again, alone")
    assert read([SWEEP, ok, SWEEP, timed(), SWEEP]) == found, "whichever driver took it"
    assert read([SWEEP, ok, timed(repeats="whole")]).metrics == MERGED | {"train_s": 5.0}


def test_the_row_says_which_times_are_still_of_the_spoiled_training(record_of):
    ok = end(record_of, Status.OK, metrics=FIRST | {"train_s": 9.0, "first_epoch_s": 3.0})
    assert read([SWEEP, ok, timed()]).note == "timed again, alone, except first_epoch_s, train_s"
    assert read([SWEEP, ok, timed(repeats="whole")]).note == "timed again, alone"


def test_one_that_failed_or_was_spoiled_leaves_the_row_as_it_was_and_is_told(record_of):
    ok = end(record_of, Status.OK, metrics=FIRST)
    spoiled, failed = timed(spoiled="others took 12%"), timed(Status.FAILED, note="no port")
    found = read([SWEEP, ok, spoiled])
    assert (found.metrics, found.timing) == (FIRST, "device")
    assert found.note == "timed again, in vain: others took 12%"
    assert read([SWEEP, ok, failed]).note == "a repetition of its timing ended as failed: no port"
    assert read([SWEEP, ok, failed, timed()]).note == "timed again, alone", "it was lost with its node"


def test_a_rerun_with_a_spoiled_timing_keeps_the_earlier_one(record_of):
    before = end(record_of, Status.OK, metrics=SECOND, provenance={"host": "b"})
    rerun = end(record_of, Status.OK, 2, metrics=FIRST, spoiled="tar took 40%", note="a remark")
    found = read([SWEEP, before, SWEEP, rerun])
    kept = MERGED | {"train_s": 5.0}
    assert (found.metrics, found.provenance, found.attempt) == (kept, {"host": "b"}, 2)
    told = "the timing is an earlier attempt's: this one's was spoiled (tar took 40%)"
    assert (found.note, found.spoiled) == (f"a remark; {told}", "tar took 40%")
    again = read([SWEEP, before, SWEEP, rerun, timed(spoiled="all busy")])
    assert again.metrics == kept and again.note == f"{found.note}; timed again, in vain: all busy"
    well = read([SWEEP, before, SWEEP, rerun, timed(metrics={"samples_per_s": 3.0})])
    assert (well.metrics["samples_per_s"], well.note) == (3.0, "a remark; timed again, alone")
    assert well.spoiled == "" and "train_s" not in well.metrics, "the earlier attempt's, which trained another time"
    assert read([SWEEP, before, SWEEP, rerun, SWEEP, end(record_of, Status.OK, 3, metrics=FIRST)]).metrics == FIRST


def test_a_repetition_of_what_is_no_ok_trial_is_nothing(record_of):
    assert read([SWEEP, end(record_of, Status.OOM), timed()]).status is Status.OOM
    odd = [timed(), Record(kind=Kind.TIMED, value={}), Record(kind=Kind.TIMED, value=7)]
    assert list(standing(odd)) == odd


def test_what_was_repeated_is_known_until_a_rerun_has_ended(record_of):
    ok = end(record_of, Status.OK)
    assert repeated([SWEEP, ok, timed()]) == {"1-32-none-0"}
    assert repeated([SWEEP, ok, timed(), SWEEP, ok]) == set()
    assert repeated([SWEEP, ok, timed(Status.FAILED, again=True)]) == set(), "the driver died before the next"
    assert repeated([SWEEP, ok, timed(Status.FAILED, again=True), timed(Status.FAILED)]) == {"1-32-none-0"}
