"""A further attempt at a finished trial, through the session, with the files that a back end leaves."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.collection.curves import curves_frame
from orchestrator.driver.interrupt import Interrupt
from orchestrator.driver.kept_files import FURTHER, put_aside
from orchestrator.driver.session import Session
from orchestrator.journal.journal import Journal, terminal
from orchestrator.journal.line import Kind
from orchestrator.journal.outcome import Outcome
from orchestrator.journal.soundness import read_results
from orchestrator.library import load_results
from orchestrator.storage.layout import KEPT, Layout
from orchestrator.verify.files import of_ended_trials
from sweeps.status import Status
from tests.contract.trials import trial
from tests.unit.orchestrator.driver.screen import Nobody

TRIAL = trial("t", "quick", ranks=1, timing="exclusive")
OK = Outcome(status=Status.OK, wall_s=1.0)
FAILED = Outcome(status=Status.FAILED, wall_s=1.0, note="boom", trace="Traceback")


def session(layout: Layout, journal: Journal) -> Session:
    display: Any = Nobody()
    return Session(layout, journal, display, Interrupt())


def attempt(taken_up: Session, layout: Layout, losses: list[float], outcome: Outcome | None) -> None:
    """One that reports these losses, leaves telemetry, and ends so; None: the driver is killed before it does."""
    taken_up.started(TRIAL)
    (layout.trial("t") / "telemetry.parquet").write_text(f"of {losses}")
    for epoch, loss in enumerate(losses, start=1):
        taken_up.reported(TRIAL, [{"epoch": epoch, "loss": loss}])
    if outcome is not None:
        taken_up.finished(TRIAL, outcome)


def state(layout: Layout) -> tuple[list[float], str]:
    """What the report draws of the trial, and its telemetry."""
    frame, findings = curves_frame(layout, ["t"])
    assert not findings
    return list(frame["loss"]), layout.telemetry("t").read_text()


def twice(layout: Layout, journal: Journal, outcome: Outcome | None) -> Session:
    taken_up = session(layout, journal)
    attempt(taken_up, layout, [3.0, 2.0], OK)
    journal.append(Kind.SWEEP, {"asked": {}, "rerun": "all"})
    attempt(taken_up, layout, [9.0], outcome)
    return taken_up


def test_one_that_is_ok_takes_the_place_of_the_first(layout: Layout) -> None:
    journal = Journal.open(layout.journal)
    twice(layout, journal, OK)
    assert state(layout) == ([9.0], "of [9.0]")
    assert not (layout.trial("t") / KEPT).exists() and list(of_ended_trials(layout, journal.records)) == []


def test_so_does_one_whose_driver_was_killed_once_another_takes_up_the_sweep(layout: Layout) -> None:
    journal = Journal.open(layout.journal)
    twice(layout, journal, None)
    assert state(layout)[0] == [9.0]
    session(layout, journal)
    assert state(layout) == ([3.0, 2.0], "of [3.0, 2.0]")


def test_until_then_a_report_reads_the_files_of_the_row_that_stands(layout: Layout) -> None:
    journal = Journal.open(layout.journal)
    twice(layout, journal, None)
    assert state(replace(layout, set_aside=read_results(layout).set_aside)) == ([3.0, 2.0], "of [3.0, 2.0]")
    assert list(load_results(layout.root).curves()["loss"]) == [3.0, 2.0]


@pytest.mark.parametrize("outcome", [OK, FAILED])
def test_and_one_that_ended_has_its_files_though_the_copies_were_not_removed(layout: Layout, outcome: Outcome) -> None:
    journal = Journal.open(layout.journal)
    attempt(session(layout, journal), layout, [3.0], OK)
    journal.append(Kind.SWEEP, {"asked": {}, "rerun": ["t"]})
    attempt(session(layout, journal), layout, [9.0], outcome)
    put_aside(layout.trial("t"))  # as if the driver had died before it removed them
    assert not read_results(layout).set_aside


def test_and_one_that_was_interrupted(layout: Layout) -> None:
    journal = Journal.open(layout.journal)
    twice(layout, journal, None).settle()
    assert state(layout) == ([3.0, 2.0], "of [3.0, 2.0]")


@pytest.mark.parametrize("name", ["metrics.jsonl", "telemetry.parquet"])
def test_a_driver_that_died_while_it_brought_them_back_is_finished_by_the_next(layout: Layout, name: str) -> None:
    journal = Journal.open(layout.journal)
    twice(layout, journal, None)
    folder = layout.trial("t")
    (folder / FURTHER).mkdir()
    (folder / name).replace(folder / FURTHER / name)  # as far as it came
    session(layout, journal)
    assert state(layout) == ([3.0, 2.0], "of [3.0, 2.0]")


def test_one_that_is_asked_for_keeps_nothing(layout: Layout) -> None:
    journal = Journal.open(layout.journal)
    attempt(session(layout, journal), layout, [3.0], OK)
    journal.append(Kind.SWEEP, {"asked": {}, "rerun": "all"})
    attempt(session(layout, journal), layout, [9.0], FAILED)
    assert state(layout)[0] == [9.0] and not (layout.trial("t") / KEPT).exists()


def test_until_it_has_ended_the_files_are_those_of_the_row_that_stands(layout: Layout) -> None:
    journal = Journal.open(layout.journal)
    attempt(session(layout, journal), layout, [3.0, 2.0], OK)
    journal.append(Kind.SWEEP, {"asked": {}, "rerun": ["t"]})
    attempt(session(layout, journal), layout, [9.0], None)
    assert state(layout)[0] == [9.0]
    taken_up = session(layout, journal)
    assert state(layout) == ([3.0, 2.0], "of [3.0, 2.0]")
    attempt(taken_up, layout, [8.0], OK)
    session(layout, journal)
    assert state(layout) == ([8.0], "of [8.0]") and list(of_ended_trials(layout, journal.records)) == []


def test_one_that_is_left_out_after_an_attempt_leaves_them_too(layout: Layout) -> None:
    journal = Journal.open(layout.journal)
    attempt(session(layout, journal), layout, [3.0, 2.0], OK)
    taken_up = session(layout, journal)
    attempt(taken_up, layout, [9.0], None)
    taken_up.left_out([(TRIAL, Outcome(status=Status.SKIPPED, note="no budget", wall_s=0.0, skipped_by="budget"))])
    assert state(layout) == ([3.0, 2.0], "of [3.0, 2.0]") and list(of_ended_trials(layout, journal.records)) == []
    assert terminal(journal.records)["t"].status is Status.OK


def test_one_that_never_ran_has_none(layout: Layout) -> None:
    journal = Journal.open(layout.journal)
    session(layout, journal).found_infeasible([(TRIAL, "no room")])
    attempt(session(layout, journal), layout, [3.0], OK)
    assert state(layout)[0] == [3.0]
