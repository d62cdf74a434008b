"""A session journals its trials' attempts, keeps the files of the effective row, and refuses wrong requests."""

import errno
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.analysis.curve_frame import curves_frame
from orchestrator.analysis.trials import cotenants
from orchestrator.library import load_results
from orchestrator.plan.rehearsals import Rehearsal, Rehearsals, kind_of
from orchestrator.run.interrupt import Interrupt
from orchestrator.run.session import Session
from orchestrator.run.verify import of_ended_trials
from orchestrator.store.history import History
from orchestrator.store.journal import Journal, replay
from orchestrator.store.record import Kind, TrialOutcome
from orchestrator.store.results import read_results
from orchestrator.store.results_folder import KEPT
from orchestrator.store.secrets import Secrets
from orchestrator.store.trial_files import REJECTED, snapshot
from sweeps.errors import ConfigError
from sweeps.rank_exit import Cause
from sweeps.status import Status
from sweeps.trial import Purpose
from tests.contract.trials import trial
from tests.unit.orchestrator.run.screen import Nobody

TRIAL = trial("t", "quick")
OK = TrialOutcome(wall_s=1.0)
BROKEN = TrialOutcome(cause=Cause.ERROR, wall_s=1.0, note="boom", trace="Traceback")
FULL = TrialOutcome(cause=Cause.DISK, wall_s=1.0, note="OSError: [Errno 122] Disk quota exceeded")
SKIPPED = TrialOutcome(note="no money", wall_s=0.0, skipped_by="budget")


_journals: dict[Path, Journal] = {}
"""The last driver's journals, by path."""


def session(results_folder, *, retries=0, secrets=None):
    """Return the session of a further driver; the one before it has ended."""
    if before := _journals.pop(results_folder.journal, None):
        before.close()
    journal = _journals[results_folder.journal] = Journal.open(results_folder.journal, secrets or Secrets())
    return session_on(results_folder, journal, retries=retries, secrets=secrets or Secrets())


def session_on(results_folder, journal, **settings):
    display: Any = Nobody()
    return Session(results_folder, journal, display, Interrupt(), **settings)


def history(results_folder):
    return History(replay(results_folder.journal).records)


def kinds(results_folder):
    return [record.kind for record in replay(results_folder.journal).records]


def leave_checkpoint(results_folder):
    file = results_folder.checkpoint("t") / "state.pt"
    file.parent.mkdir(parents=True)
    file.write_text("weights")
    return file


def run_to(taken_up, outcome, *rows, of=TRIAL):
    """Start a trial, report rows, and end it. Return whether another attempt follows."""
    taken_up.started(of)
    if rows:
        taken_up.reported(of, rows)
    return taken_up.finished(of, outcome)


def test_forecast_is_journaled_with_the_trial(results_folder):
    too_large = Rehearsal(kind=kind_of(TRIAL), micro_batch=1, status=Status.OOM)
    with Journal.open(results_folder.journal) as journal:
        run_to(session_on(results_folder, journal, rehearsals=Rehearsals([too_large])), OK)
        assert [row.forecast for row in journal.history.ends.values()] == [{"fits": "no"}]


def test_full_disk_ends_the_sweep_not_the_trial(results_folder):
    with pytest.raises(OSError, match="Disk quota exceeded") as caught:
        run_to(session(results_folder, retries=3), FULL)
    assert caught.value.errno == errno.EDQUOT and caught.value.filename == str(results_folder.trial("t"))
    assert kinds(results_folder) == ["started"]


def test_failed_trial_is_retried_and_then_finished(results_folder):
    taken_up = session(results_folder, retries=1)
    for again in (True, False):
        assert run_to(taken_up, BROKEN) is again
    assert kinds(results_folder) == ["started", "retried", "started", "finished"]
    assert results_folder.trace("t").read_text() == "Traceback"
    row = history(results_folder).all_ends["t"]
    assert (row.attempt, row.cause) == (2, Cause.ERROR)


def test_missing_file_of_a_command_is_noted_with_a_remedy(results_folder, monkeypatch):
    monkeypatch.chdir(results_folder.root)
    Path("data").mkdir()
    Path("data/houses.npz").touch()

    def noted(path):
        taken_up = session(results_folder)
        taken_up.started(TRIAL)
        note = f"CommandError: [Errno 2] No such file or directory: '{path}'"
        taken_up.finished(TRIAL, replace(BROKEN, note=note))
        return history(results_folder).all_ends["t"].note

    assert noted("data/houses.npz").endswith("'data/houses.npz'")  # a function runs in the driver's working directory
    (results_folder.trial("t") / "work").mkdir()
    note = noted("data/houses.npz")
    assert all(way in note for way in ("{source_dir}/data/houses.npz", "trainable.argv", "trainable.cwd=source"))
    assert noted("data/other.npz").endswith("'data/other.npz'")
    assert noted("n" * 270).endswith("n'")  # too long for a file name


def test_cut_off_attempt_is_recorded_with_its_wall_time(results_folder, monkeypatch):
    clock = iter([100.0, 107.5, 120.0])
    monkeypatch.setattr("orchestrator.run.session.time", SimpleNamespace(monotonic=lambda: next(clock)))
    interrupted = session(results_folder)
    interrupted.started(TRIAL)
    interrupted.cut_off()
    interrupted.cut_off()
    cut_off = replay(results_folder.journal).records[-1].value
    assert cut_off == {"trial_id": "t", "attempt": 1, "gpus_held": TRIAL.gpus_held, "wall_s": 7.5}
    assert kinds(results_folder) == ["started", "cut_off"]
    monkeypatch.undo()
    next_one = session(results_folder)
    next_one.started(TRIAL)
    next_one.finished(TRIAL, OK)
    next_one.cut_off()
    assert kinds(results_folder) == ["started", "cut_off", "started", "finished"]
    (end,) = history(results_folder).all_ends.values()
    assert (end.attempt, end.wall_s, end.earlier_s) == (2, 1.0, 7.5)


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (OK, False),
        (BROKEN, True),
        (TrialOutcome(cause=Cause.DIVERGED, wall_s=1.0), False),
        (replace(SKIPPED, wall_s=1.0, skipped_by="early_stop"), False),
    ],
)
def test_checkpoint_stays_only_if_the_trial_can_continue(results_folder, end, kept):
    taken_up = session(results_folder)
    taken_up.started(TRIAL)
    checkpoint = leave_checkpoint(results_folder)
    taken_up.finished(TRIAL, end)
    assert checkpoint.exists() is kept


@pytest.mark.parametrize("ended", [False, True])
def test_next_driver_continues_unfinished_trials_from_their_checkpoint(results_folder, ended):
    first = session(results_folder)
    first.started(TRIAL)
    first.reported(TRIAL, [{"epoch": 1}, {"epoch": 2}])
    checkpoint = leave_checkpoint(results_folder)
    if ended:
        first.finished(TRIAL, BROKEN)
    session(results_folder).started(TRIAL)
    assert checkpoint.exists() is not ended
    assert results_folder.metrics("t").read_text().count("\n") == (0 if ended else 2)


SECRET = "hunter22-and-more"


def test_secrets_are_in_no_record_row_trace_or_log(results_folder):
    taken_up = session(results_folder, secrets=Secrets({SECRET: "<hidden>"}))
    taken_up.started(replace(TRIAL, config={"said": SECRET}))
    taken_up.reported(TRIAL, [{"epoch": 1, "said": SECRET}])
    logs = {"rank0.log", "stdout.log", "stderr.log"}  # the last two are a command's
    for name in logs:
        (results_folder.trial("t") / name).write_text(f"my password is {SECRET}\n")
    taken_up.finished(TRIAL, replace(BROKEN, note=f"no {SECRET}", trace=f"no {SECRET}", provenance={"env": SECRET}))
    written = [path for path in results_folder.root.rglob("*") if path.is_file()]
    assert {"journal.jsonl", "metrics.jsonl", "trace.txt", "config.yaml", *logs} <= {path.name for path in written}
    assert not [path for path in written if SECRET in path.read_text()]
    assert history(results_folder).all_ends["t"].note == "no <hidden>"


@pytest.mark.parametrize("why", [SKIPPED, TrialOutcome(cause=Cause.NO_ROOM, note="no GPU", wall_s=0.0)])
def test_left_out_trial_is_recorded_once_per_reason(results_folder, why):
    session(results_folder).left_out([(REPETITION, why)])
    assert kinds(results_folder) == []  # a repetition has no record
    for reason in (why, why, replace(why, note="no time")):
        session(results_folder).left_out([(TRIAL, reason)])
    assert kinds(results_folder) == ["finished", "finished"]


@pytest.mark.parametrize("outcome", [OK, BROKEN, replace(BROKEN, cause=Cause.NODE)])
def test_a_probe_has_one_record_no_files_and_no_retry(results_folder, outcome):
    probe = replace(TRIAL, purpose=Purpose.PROBE, measures="speed")
    figures = {"samples_per_s": 8.0, "sequence_length": 128}
    run_to(session(results_folder, retries=1), replace(outcome, metrics=figures), {"epoch": 1}, of=probe)
    (record,) = replay(results_folder.journal).records
    assert record.kind == "probed" and not results_folder.trial("t").exists()
    assert [record.value[key] for key in ("status", *figures)] == [outcome.status, *figures.values()]


def timed(rate, foreign_cpu=0.0):
    return replace(OK, metrics={"samples_per_s": rate, "foreign_cpu": foreign_cpu, "accuracy": 0.5})


def row(results_folder):
    return history(results_folder).all_ends["t"]


REPETITION = replace(TRIAL, trial_id="again", purpose=Purpose.WINDOW, measures="t")


def repeat(taken_up, outcome):
    taken_up.queued({REPETITION.trial_id: 2.0}, "disturbed timings")
    run_to(taken_up, outcome, {"epoch": 1}, of=REPETITION)


def test_a_repetition_that_is_left_out_waits_no_longer(results_folder):
    taken_up = session(results_folder)
    taken_up.queued({REPETITION.trial_id: 2.0}, "disturbed timings")
    for _ in range(2):
        taken_up.dequeued([REPETITION, TRIAL])
    assert kinds(results_folder) == ["queued", "queued"] and not history(results_folder).queued


def test_repetition_leaves_a_timing_and_touches_neither_curve_nor_attempt(results_folder):
    taken_up = session(results_folder)
    run_to(taken_up, timed(1.0, foreign_cpu=0.4), {"epoch": 1}, {"epoch": 2})
    curve = results_folder.metrics("t").read_bytes()
    repeat(taken_up, replace(timed(2.0), metrics={**timed(2.0).metrics, "accuracy": 0.1}))
    assert kinds(results_folder) == ["started", "finished", "queued", "started", "finished"]
    assert results_folder.metrics("t").read_bytes() == curve
    assert (
        row(results_folder).attempt,
        row(results_folder).metrics["samples_per_s"],
        row(results_folder).metrics["accuracy"],
    ) == (1, 2.0, 0.5)
    assert list(of_ended_trials(results_folder, history(results_folder))) == [] and list(
        history(results_folder).all_ends
    ) == ["t"]


def test_disturbed_repetition_notes_the_cause(results_folder, monkeypatch):
    taken_up, discarded = session(results_folder), []
    monkeypatch.setattr(taken_up._display, "finished", lambda *end: discarded.append(end[-1]))
    run_to(taken_up, timed(1.0, foreign_cpu=0.4))
    repeat(taken_up, timed(2.0, foreign_cpu=0.12))
    assert row(results_folder).metrics["samples_per_s"] == 1.0 and "12%" in row(results_folder).note
    assert discarded[0] == "" and "12%" in discarded[1]


def test_repetition_lost_with_its_node_is_run_again(results_folder):
    taken_up = session(results_folder)
    run_to(taken_up, timed(1.0, foreign_cpu=0.4))
    repeat(taken_up, replace(BROKEN, cause=Cause.NODE))
    assert kinds(results_folder)[-1] == "retried" and not history(results_folder).repeated
    repeat(taken_up, BROKEN)
    assert kinds(results_folder)[-1] == "finished" and row(results_folder).note.endswith("ended as failed: boom")
    assert history(results_folder).repeated == {"t"}


@pytest.mark.parametrize(("rate", "foreign_cpu"), [(2.0, 0.4), (3.0, 0.0)])
def test_a_disturbed_timing_of_a_rerun_replaces_no_valid_one(results_folder, rate, foreign_cpu):
    run_to(session(results_folder), timed(2.0))
    rerun = timed(3.0, foreign_cpu)
    run_to(session(results_folder), replace(rerun, metrics=rerun.metrics | {"accuracy": 0.6}))
    assert (row(results_folder).metrics["samples_per_s"], row(results_folder).metrics["accuracy"]) == (rate, 0.6)
    assert bool(row(results_folder).disturbed) is bool(foreign_cpu)


QUIET = trial("t", "quick", ranks=1, timing="exclusive")
NO_ROOM = TrialOutcome(cause=Cause.NO_ROOM, wall_s=0.0, note="no room")


def attempt(taken_up, results_folder, losses, outcome):
    """One that reports these losses, leaves telemetry, and ends so; None: the driver is killed before it does."""
    taken_up.started(QUIET)
    (results_folder.trial("t") / "telemetry.parquet").write_text(f"of {losses}")
    for epoch, loss in enumerate(losses, start=1):
        taken_up.reported(QUIET, [{"epoch": epoch, "loss": loss}])
    if outcome is not None:
        taken_up.finished(QUIET, outcome)


def half_restore(results_folder, name):
    """Do what a driver does before it dies while it restores the files."""
    folder = results_folder.trial("t")
    (folder / REJECTED).mkdir()
    (folder / name).replace(folder / REJECTED / name)


RUN, RERUN, KILLED = ([3.0, 2.0], OK), ([9.0], OK), ([9.0], None)
STORIES: dict[str, tuple[list[Any], list[float]]] = {
    "successful rerun": ([RUN, "all", RERUN], [9.0]),
    "failed rerun": ([RUN, "all", "driver", ([9.0], BROKEN)], [9.0]),
    "killed rerun": ([RUN, "all", KILLED, "driver"], [3.0, 2.0]),
    "interrupted rerun": ([RUN, "all", KILLED, "settle"], [3.0, 2.0]),
    "killed rerun that runs again": ([RUN, ["t"], "driver", KILLED, "driver", ([8.0], OK), "driver"], [8.0]),
    "restore cut short at the curve": ([RUN, "all", KILLED, Path("metrics.jsonl"), "driver"], [3.0, 2.0]),
    "restore cut short at the telemetry": ([RUN, "all", KILLED, Path("telemetry.parquet"), "driver"], [3.0, 2.0]),
    "rerun left out after an attempt": ([RUN, "driver", KILLED, SKIPPED], [3.0, 2.0]),
    "first run after it did not fit": ([NO_ROOM, "driver", ([3.0], OK)], [3.0]),
}


@pytest.mark.parametrize(("events", "losses"), STORIES.values(), ids=STORIES)
def test_the_files_of_the_effective_row_are_kept(results_folder, events, losses):
    journal = Journal.open(results_folder.journal)
    taken_up = session_on(results_folder, journal)
    for event in events:
        match event:
            case "driver":
                taken_up = session_on(results_folder, journal)
            case "settle":
                taken_up.restore_files()
            case "all" | ["t"]:
                journal.append(Kind.SWEEP, {"fingerprint": {}, "rerun": event})
            case Path():
                half_restore(results_folder, event.name)
            case TrialOutcome():
                taken_up.left_out([(QUIET, event)])
            case (reported, outcome):
                attempt(taken_up, results_folder, reported, outcome)
                # The files are those of the last attempt while it runs.
                assert list(curves_frame(results_folder, ["t"])[0]["loss"]) == reported
    frame, problems = curves_frame(results_folder, ["t"])
    assert list(frame["loss"]) == losses and not problems
    assert results_folder.telemetry("t").read_text() == f"of {losses}"
    assert (
        not (results_folder.trial("t") / KEPT).exists() and list(of_ended_trials(results_folder, journal.history)) == []
    )


def test_report_reads_the_snapshot_of_an_unfinished_rerun(results_folder):
    journal = Journal.open(results_folder.journal)
    attempt(session_on(results_folder, journal), results_folder, *RUN)
    attempt(session_on(results_folder, journal), results_folder, *KILLED)
    frame, _ = curves_frame(replace(results_folder, set_aside=read_results(results_folder).history.set_aside), ["t"])
    assert list(frame["loss"]) == list(load_results(results_folder.root).curves()["loss"]) == [3.0, 2.0]


@pytest.mark.parametrize("outcome", [OK, BROKEN])
def test_report_ignores_a_snapshot_of_a_finished_rerun(results_folder, outcome):
    journal = Journal.open(results_folder.journal)
    attempt(session_on(results_folder, journal), results_folder, *RUN)
    attempt(session_on(results_folder, journal), results_folder, [9.0], outcome)
    snapshot(results_folder.trial("t"))  # as if the driver had died before it removed them
    assert not read_results(results_folder).history.set_aside


NOTE = "RequestError: model 'mine:build' has no key width"
WRONG = replace(BROKEN, cause=Cause.REQUEST, note=NOTE)


def test_a_wrong_request_ends_the_sweep_not_the_trial(results_folder):
    secret = replace(WRONG, trace=f"Traceback {SECRET}", note=f"{NOTE} {SECRET}")
    with pytest.raises(ConfigError) as caught:
        run_to(session(results_folder, secrets=Secrets({SECRET: "<hidden>"})), secret)
    assert caught.value.errors == (f"{NOTE} <hidden> (see {results_folder.trace('t')})",)
    assert results_folder.trace("t").read_text() == "Traceback <hidden>" and not history(results_folder).all_ends


def test_after_a_result_a_wrong_request_fails_its_trial(results_folder):
    taken_up = session(results_folder)
    run_to(taken_up, OK)
    run_to(taken_up, WRONG, of=trial("second", "quick"))
    assert history(results_folder).all_ends["second"].status is Status.FAILED


def test_result_of_a_trial_with_the_same_training_is_copied(results_folder):
    one = replace(TRIAL, axes={"lr_rule": "none", "seed": 0}, lr=replace(TRIAL.lr, rule="none"))
    same = replace(one, trial_id="s", cell_id="s", axes={"lr_rule": "sqrt", "seed": 0}, lr=replace(one.lr, rule="sqrt"))
    taken_up = session(results_folder)
    taken_up.started(one)
    taken_up.reported(one, [{"epoch": 1, "loss": 0.5}])
    metrics = {"accuracy": 0.9, "train_s": 3.0, "samples_per_s": 100.0, "window_s": 2.0, "foreign_cpu": 0.0}
    ended = TrialOutcome(wall_s=8.0, metrics=metrics, provenance={"host": "a"})
    taken_up.finished(one, ended)
    taken_up.copied(same, history(results_folder).ends["t"])
    replayed = history(results_folder)
    copy = replayed.ends["s"]
    assert (copy.lr_rule, copy.cell_id, copy.same_as, copy.timed_with) == ("sqrt", "s", "t", "t")
    assert dict(copy.metrics) == metrics and copy.wall_s == 8.0 and copy.note == "same training as lr_rule=none"
    assert replayed.spent_gpu_s == 8.0  # it has not run again
    assert results_folder.metrics("s").read_bytes() == results_folder.metrics("t").read_bytes()
    assert cotenants(list(replayed.ends.values())) == pytest.approx([0.0, math.nan], nan_ok=True)  # it ran nowhere
    assert not list(of_ended_trials(results_folder, replayed))
