"""What a trial finds wrong with the request ends the sweep, as long as no trial has a result."""

from typing import Any

import pytest

from orchestrator.run.interrupt import Interrupt
from orchestrator.run.session import Session
from orchestrator.store.journal import Journal
from orchestrator.store.layout import Layout
from orchestrator.store.record import Cause, TrialOutcome
from sweeps.errors import ConfigError
from sweeps.status import Status
from tests.contract.trials import trial
from tests.unit.orchestrator.run.screen import Nobody

NOTE = "RequestError: model 'mine:build' has no key width"
WRONG = TrialOutcome(status=Status.FAILED, cause=Cause.REQUEST, wall_s=1.0, note=NOTE, trace="Traceback …")


def session(layout: Layout, journal: Journal) -> Session:
    display: Any = Nobody()
    return Session(layout, journal, display, Interrupt())


def ends(session: Session, name: str, outcome: TrialOutcome) -> None:
    session.started(trial(name, "quick"))
    session.finished(trial(name, "quick"), outcome)


def test_it_is_told_once_and_the_trial_has_not_ended(layout: Layout) -> None:
    with Journal.open(layout.journal) as journal, pytest.raises(ConfigError) as caught:
        ends(session(layout, journal), "first", WRONG)
    assert caught.value.errors == (f"{NOTE} (see {layout.trace('first')})",)
    assert layout.trace("first").read_text() == "Traceback …" and not journal.history.all_rows


def test_after_a_result_it_is_a_trial_that_failed(layout: Layout) -> None:
    with Journal.open(layout.journal) as journal:
        ends(session(layout, journal), "first", TrialOutcome(status=Status.OK, wall_s=1.0))
        ends(session(layout, journal), "second", WRONG)
        assert journal.history.all_rows["second"].status is Status.FAILED
