"""The fold over a journal: rows, timings, attempts and spending."""

from dataclasses import replace

import pytest

from orchestrator.store.history import History, changes_between
from orchestrator.store.record import Kind, Record
from orchestrator.telemetry.timing_gate import needs_repetition
from sweeps.rank_exit import Cause
from sweeps.status import Status
from tests.unit.orchestrator.plan.planned import TRIALS, ended
from tests.unit.orchestrator.records import record_of

ID = "1-32-none-0"
SWEEP = Record(kind=Kind.SWEEP, value={"fingerprint": {"config": {"epochs": 1}}})


def request(**config):
    return Record(kind=Kind.SWEEP, value={"fingerprint": config})


def of(kind, attempt=1, wall_s=None, trial_id=ID, **other):
    return Record(kind=kind, value={"trial_id": trial_id, "attempt": attempt, "wall_s": wall_s, **other})


def started(attempt=1, trial_id=ID):
    return of(Kind.STARTED, attempt, trial_id=trial_id)


def end(status=Status.OK, attempt=1, **fields):
    return Record(
        kind=Kind.FINISHED, value=record_of(status=status, attempt=attempt, **{"trial_id": ID} | fields).to_json()
    )


def row(*records):
    history = History(records)
    assert history.ends == history.all_ends
    (trial_end,) = history.ends.values()
    return trial_end


def test_rows_and_probes_belong_to_the_fingerprint_they_ran_under():
    def probed(speed, wall_s):
        return Record(kind=Kind.PROBED, value={"speed": speed, "wall_s": wall_s})

    ends = [Record(kind=Kind.FINISHED, value=ended(trial).to_json()) for trial in TRIALS[:3]]
    history = History(
        [
            *(request(epochs=1), ends[0], probed("slow", 9), request(epochs=2), ends[1], probed("slow", 1)),
            *(request(epochs=1), ends[2], probed("fast", 2), probed("fast", 3)),
        ]
    )
    assert set(history.ends) == {TRIALS[0].trial_id, TRIALS[2].trial_id}
    assert set(history.ends_under({"epochs": 2})) == {TRIALS[1].trial_id}
    assert history.ends_under({"epochs": 3}) == {} and len(history.all_ends) == 3
    assert {speed: value["wall_s"] for speed, value in history.probes.items()} == {"slow": 9, "fast": 3}
    assert history.fingerprint == {"epochs": 1} and history.changes({"epochs": 3}) == ["epochs: 1 → 3"]


def test_empty_journal_has_no_history():
    history = History()
    assert history.fingerprint is None and history.ends == {} and history.changes({"epochs": 1}) == []
    assert not history.has_answers and not history.is_unfinished


def test_hardware_is_that_of_the_most_recent_trials():
    values = ({"hardware": {"gpu": "H100", "cpu": "A"}}, {"hardware": {"gpu": "A100"}}, {}, {"hardware": 7})
    assert History(Record(kind=Kind.SWEEP, value=value) for value in values).hardware == {"gpu": "A100", "cpu": "A"}


def test_keys_that_changed_alike_share_a_line():
    before = {"source": {"a:train": "1f", "a:Model": "1f", "b": "3c"}, "epochs": 1}
    now = {"source": {"a:train": "2e", "a:Model": "2e", "b": "4d"}, "epochs": 1}
    assert changes_between(before, now) == ["source.a:train, source.a:Model: '1f' → '2e'", "source.b: '3c' → '4d'"]


def test_a_difference_names_keys_and_both_values():
    before = {"config": {"budget": {"epochs": 1}, "gone": 1}, "source": "a"}
    now = {"config": {"budget": {"epochs": 2}}, "source": "a", "new": {}}
    assert changes_between(before, now) == [
        "config.budget.epochs: 1 → 2",
        "config.gone: 1 → (absent)",
        "new: (absent) → {}",
    ]


@pytest.mark.parametrize(
    ("records", "earlier_s", "unknown"),
    [
        ([started(), end()], 0.0, 0),
        ([started(), of(Kind.RETRIED, 1, 5.0), started(2), end(attempt=2)], 5.0, 0),
        ([started(), of(Kind.CUT_OFF, 1, 7.0), SWEEP, started(2), end(attempt=2)], 7.0, 0),
        ([started(), SWEEP, started(2), end(attempt=2)], 0.0, 1),  # the driver was killed
        ([started(), started(2), of(Kind.RETRIED, 2, 3.0), started(3), end(attempt=3)], 3.0, 1),
        ([started(), of(Kind.CUT_OFF, 1, "long"), started(2), end(attempt=2)], 0.0, 1),
        ([Record(kind=Kind.STARTED, value=None), started(), end()], 0.0, 0),
        ([started(), of(Kind.RETRIED, 1, 5.0), started(2), end(attempt=2), SWEEP, started(3), end(attempt=3)], 0.0, 0),
    ],
)
def test_row_adds_up_attempts_since_the_previous_end(records, earlier_s, unknown):
    trial_end = row(SWEEP, *records)
    assert (trial_end.earlier_s, trial_end.unknown_attempts) == (earlier_s, unknown)
    assert "earlier_s" not in trial_end.to_json()


def test_failures_of_earlier_drivers_count_until_the_trial_ends():
    def retried(trial_id, cause):
        return of(Kind.RETRIED, trial_id=trial_id, cause=cause)

    ended_a = end(trial_id="a")
    history = History([SWEEP, retried("a", "node"), retried("b", "crash"), ended_a, SWEEP, retried("a", "error")])
    assert history.of("a").failures == [Cause.ERROR] and history.of("b").failures == [Cause.CRASH]


def test_all_attempts_and_probes_count_as_spent():
    history = History(
        [
            of(Kind.RETRIED, 1, 5.0, gpus_held=2),
            of(Kind.CUT_OFF, 2, 10.0, gpus_held=2),
            of(Kind.FINISHED, 3, 20.0, gpus=2),
            of(Kind.PROBED, None, 1.0, "c", gpus=0.25, gpus_held=4),
            of(Kind.FINISHED, 3, None, gpus=2),
        ]
    )
    assert history.spent_gpu_s == 70 + 4


def test_requested_rerun_replaces_the_row():
    ok, failed = end(), end(Status.FAILED, 2)
    assert row(SWEEP, ok, SWEEP, failed).status is Status.FAILED
    assert row(SWEEP, ok, SWEEP, failed, SWEEP, end(Status.FAILED, 3)).attempt == 3
    assert row(SWEEP, ok, SWEEP, end(Status.SKIPPED, 2)).status is Status.SKIPPED, "it was stopped early"


@pytest.mark.parametrize("left_out", [Status.SKIPPED, Status.INFEASIBLE])
def test_result_stays_if_the_rerun_was_left_out(left_out):
    oom = end(Status.OOM, note="too large")
    again = end(left_out, wall_s=0.0, note="why")
    trial_end = row(SWEEP, oom, SWEEP, again, SWEEP, end(left_out, wall_s=0.0))
    assert (trial_end.status, trial_end.attempt) == (Status.OOM, 1)
    assert trial_end.note.startswith("too large; ") and trial_end.note.endswith(f": {left_out.value}")
    assert row(SWEEP, oom, SWEEP, again).note.endswith(f"{left_out.value}: why")
    assert row(SWEEP, end(Status.FAILED), SWEEP, again).status is left_out


FIRST = {"samples_per_s": 1.0, "foreign_cpu": 0.4, "foreign_cpu_by": "tar", "step_s": 3.0, "accuracy": 0.9, "steps": 7}
SECOND = {"samples_per_s": 2.0, "foreign_cpu": 0.0, "step_s": 1.0, "accuracy": 0.1, "train_s": 5.0}
MERGED = {"samples_per_s": 2.0, "foreign_cpu": 0.0, "step_s": 1.0, "accuracy": 0.9, "steps": 7}


def repetition(status=Status.OK, **fields):
    given = {"trial_id": "other", "measures": ID, "purpose": "window", "timing": "exclusive", "wall_s": 4.0}
    return end(status, **given | {"metrics": SECOND, "provenance": {"host": "b"}} | fields)


def test_repetition_replaces_the_timing_and_nothing_else():
    ok = end(metrics=FIRST, note="a remark", wall_s=100.0, provenance={"host": "a"})
    trial_end = row(SWEEP, ok, repetition())
    assert trial_end.metrics == MERGED and (trial_end.timing, trial_end.provenance) == ("exclusive", {"host": "b"})
    assert (trial_end.attempt, trial_end.wall_s, trial_end.note) == (1, 100.0, "a remark; re-timed alone")
    assert row(SWEEP, ok, SWEEP, repetition(), SWEEP) == trial_end
    assert row(SWEEP, ok, repetition(purpose="repetition")).metrics == MERGED | {"train_s": 5.0}


def test_row_names_times_that_are_still_disturbed():
    ok = end(metrics=FIRST | {"train_s": 9.0, "first_epoch_s": 3.0})
    assert row(SWEEP, ok, repetition()).note == "re-timed alone, except first_epoch_s, train_s"
    assert row(SWEEP, ok, repetition(purpose="repetition")).note == "re-timed alone"


def test_failed_or_disturbed_repetition_leaves_the_row():
    ok, failed = end(metrics=FIRST), repetition(Status.FAILED, note="no port")
    trial_end = row(SWEEP, ok, repetition(disturbed="others took 12%"))
    assert (trial_end.metrics, trial_end.timing) == (FIRST, "device")
    assert trial_end.note.endswith("disturbed: others took 12%")
    assert row(SWEEP, ok, failed).note.endswith("failed: no port")
    assert row(SWEEP, ok, failed, repetition()).note == "re-timed alone"  # the last repetition counts


def test_rerun_with_a_disturbed_timing_keeps_the_earlier_timing():
    before = end(metrics=SECOND, provenance={"host": "b"})
    rerun = end(attempt=2, metrics=FIRST, disturbed="tar took 40%", note="a remark")
    trial_end = row(SWEEP, before, SWEEP, rerun)
    kept = MERGED | {"train_s": 5.0}
    assert (trial_end.metrics, trial_end.provenance, trial_end.attempt) == (kept, {"host": "b"}, 2)
    assert trial_end.disturbed == "tar took 40%"
    assert trial_end.note.startswith("a remark; ") and "tar took 40%" in trial_end.note
    again = row(SWEEP, before, SWEEP, rerun, repetition(disturbed="all busy"))
    assert again.metrics == kept and again.note.startswith(trial_end.note) and again.note.endswith("all busy")
    well = row(SWEEP, before, SWEEP, rerun, repetition(metrics={"samples_per_s": 3.0}))
    assert (well.metrics["samples_per_s"], well.note) == (3.0, "a remark; re-timed alone")
    assert well.disturbed == "" and "train_s" not in well.metrics  # that of the first attempt
    assert row(SWEEP, before, SWEEP, rerun, SWEEP, end(attempt=3, metrics=FIRST)).metrics == FIRST


def test_repetition_of_a_trial_that_is_not_ok_changes_nothing():
    assert row(SWEEP, end(Status.OOM), repetition()).status is Status.OOM
    assert History([repetition()]).ends == {}


def test_rerun_trial_may_be_repeated_again():
    assert History([SWEEP, end(), repetition()]).repeated == {ID}
    assert History([SWEEP, end(), repetition(), SWEEP, end(attempt=2)]).repeated == set()
    lost = [of(Kind.STARTED, trial_id="other", measures=ID), of(Kind.RETRIED, trial_id="other", cause="node")]
    assert History([SWEEP, end(), *lost]).repeated == set()


def test_files_are_set_aside_during_a_further_attempt():
    once = [SWEEP, started(), end()]
    assert not History(once).set_aside and not History(once).of(ID).restarted
    assert History([*once, SWEEP, started(2)]).set_aside == {ID}
    assert History([*once, SWEEP, started(2), of(Kind.CUT_OFF, 2, 1.0)]).set_aside == {ID}
    assert not History([*once, SWEEP, started(2), end(Status.FAILED, 2)]).set_aside


def test_records_of_any_form_are_accepted():
    kinds = [*Kind, "of a later version"]
    values = [None, 7, [], {}, {"trial_id": 3, "attempt": "x", "wall_s": "y", "measures": [], "cause": []}]
    odd = [Record(kind=kind, value=value) for kind in kinds for value in values]
    history = History([*odd, SWEEP, end(), *odd[:-1], SWEEP])
    assert list(history.ends) == [ID]


def test_sweep_is_unfinished_until_a_driver_has_left_nothing_out():
    def ended_with(missing):
        return Record(kind=Kind.ENDED, value={"missing": missing})

    unfinished = [
        History(records).is_unfinished for records in ([SWEEP], [SWEEP, ended_with(2)], [SWEEP, ended_with(0)])
    ]
    assert unfinished == [True, True, False]
    assert History([SWEEP, ended_with(0), SWEEP]).is_unfinished


def test_without_a_noted_end_the_trials_show_whether_a_sweep_is_finished():
    def taken_up(waiting):
        return Record(kind=Kind.SWEEP, value=SWEEP.value | {"planned": 2, "open": waiting})

    assert not History([taken_up(1), started(), end()]).is_unfinished  # its driver failed while it wrote the tables
    assert History([taken_up(2), started(), end()]).is_unfinished
    assert History([taken_up(1), started(), end(), taken_up(1), started(2)]).is_unfinished  # runs again
    assert History([taken_up(1), started(), end(), taken_up(1)]).is_unfinished  # another grid, of which nothing ran
    assert not History([taken_up(1), started(), end(), taken_up(0)]).is_unfinished


def test_failures_alone_are_no_answers():
    failed = replace(ended(TRIALS[0]), status=Status.FAILED)
    assert not History([SWEEP, Record(kind=Kind.FINISHED, value=failed.to_json())]).has_answers
    assert History([SWEEP, end()]).has_answers


def test_row_timed_with_another_has_its_speed_and_its_repetitions():
    source = {"samples_per_s": 100.0, "window_s": 2.0, "train_s": 9.0, "foreign_cpu": 0.5, "step_s": 0.1}
    other = record_of(lr_rule="linear", metrics={"train_s": 5.0, "accuracy": 0.9}, timed_with=ID)
    records = [SWEEP, started(), end(metrics=source), Record(kind=Kind.FINISHED, value=other.to_json())]
    taken = History(records).ends[other.trial_id]
    assert dict(taken.metrics) == source | {"train_s": 5.0, "accuracy": 0.9} and taken.timed_with == ID
    assert needs_repetition(History(records).ends) == {ID}  # not of both
    again = end(trial_id="again", measures=ID, metrics={**source, "samples_per_s": 120.0, "foreign_cpu": 0.0})
    ends = History([*records, again]).ends
    assert {row.metrics["samples_per_s"] for row in ends.values()} == {120.0} and not needs_repetition(ends)
    failed = History([*records, started(2), end(Status.FAILED, 2)]).ends[other.trial_id]
    assert "samples_per_s" not in failed.metrics


def timed(rule, rate, machine="m", status=Status.OK, **fields):
    """Return the end of a trial under this rule, which is also its id."""
    on = {"machine": machine}
    return end(status, trial_id=rule, lr_rule=rule, metrics={"samples_per_s": rate}, provenance=on, **fields)


NAMED = Record(kind=Kind.TIMED, value={"trial_id": "none", "timed_with": "linear"})


@pytest.mark.parametrize(
    ("later", "rates"),
    [
        ([], {"none": 100.0, "linear": 100.0, "sqrt": 100.0}),  # as sqrt was started with the timing of none
        ([timed("none", 200.0, attempt=2)], {"none": 200.0, "linear": 100.0, "sqrt": 200.0}),
        ([timed("linear", 0.0, status=Status.FAILED, attempt=2)], {"none": 50.0, "sqrt": 50.0}),
        ([timed("linear", 300.0, "other", attempt=2)], {"none": 50.0, "linear": 300.0, "sqrt": 50.0}),
        ([timed("linear", 110.0, attempt=2)], {"none": 110.0, "linear": 110.0, "sqrt": 110.0}),
    ],
)
def test_timing_of_the_trial_that_the_driver_named_counts_as_long_as_it_is_alike(later, rates):
    follower = end(trial_id="sqrt", lr_rule="sqrt", metrics={}, timed_with="none", provenance={"machine": "m"})
    copy = end(trial_id="copy", lr_rule="adam_sqrt", metrics={}, timed_with="none", same_as="none")
    ends = History([SWEEP, timed("none", 50.0), follower, timed("linear", 100.0), NAMED, *later]).ends
    took = {key for key, row in History([SWEEP, timed("none", 50.0), follower, copy]).ends.items() if row.took_window}
    assert took == {"none", "copy"}
    assert {key: row.metrics["samples_per_s"] for key, row in ends.items() if row.status is Status.OK} == rates


def test_trials_that_name_one_another_keep_what_they_measured():
    ends = [timed("none", 50.0, timed_with="linear"), timed("linear", 100.0, timed_with="none")]
    named = [Record(kind=Kind.TIMED, value={"trial_id": a, "timed_with": a}) for a in ("none", "linear")]
    assert set(History([SWEEP, *ends]).ends) == {"none", "linear"} == set(History([SWEEP, *ends, *named]).ends)


def test_the_first_trial_of_processes_bears_their_start_also_if_it_failed_or_timed_another():
    def ended_in(trial_id, process, **fields):
        return end(trial_id=trial_id, provenance={"process": process} if process else {}, **fields)

    again = ended_in("again", "3", measures="a")
    later = [ended_in("f", "3"), ended_in("copy", "1", same_as="a"), ended_in("late", "1", same_as="b")]
    records = [ended_in("a", "1"), ended_in("b", "1"), ended_in("c", "2", status=Status.OOM), ended_in("d", "2")]
    ends = History([SWEEP, *records, ended_in("e", None), ended_in("g", None), again, *later]).ends
    kept = {trial_id for trial_id, row in ends.items() if row.in_kept_processes}
    assert kept == {"b", "d", "f", "late"}


def test_outputs_are_files_that_every_ok_trial_wrote():
    def wrote(*names, status=Status.OK, trial_id=ID):
        record = end(status, trial_id=trial_id)
        return replace(record, value={**record.value, "rewritten": list(names)})

    first, other = request(source={"files": {"log.txt": "h0"}}), request(source={"files": {"net.yaml": "n"}})
    assert History([first, wrote("log.txt", "new.txt", "net.yaml")]).outputs == {
        "log.txt": "h0",
        "net.yaml": "",
        "new.txt": "",
    }
    both = [first, wrote("log.txt", "net.yaml"), wrote("log.txt", trial_id="b"), wrote(status=Status.FAILED)]
    assert History(both).outputs == {"log.txt": "h0"}
    assert History([*both, other]).outputs == {"log.txt": ""}  # until a trial of the other config has ended
    assert History([*both, other, wrote("net.yaml", trial_id="c")]).outputs == {"net.yaml": "n"}
    assert History([first, end()]).outputs == {}
