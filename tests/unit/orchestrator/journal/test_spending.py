from dataclasses import replace

import pytest

from orchestrator.journal.history import ends_under
from orchestrator.journal.line import Kind, Record
from orchestrator.journal.spending import Earlier, earlier, spent_gpu_s
from tests.unit.orchestrator.plan.planned import TRIALS, ended

ASKED = Record(kind=Kind.SWEEP, value={"asked": {}})


def record(kind, attempt=1, wall_s=None, trial_id="a", **other):
    return Record(kind=kind, value={"trial_id": trial_id, "attempt": attempt, "wall_s": wall_s, **other})


def started(attempt=1, **other):
    return record(Kind.STARTED, attempt, **other)


@pytest.mark.parametrize(
    ("records", "before"),
    [
        ([started(), record(Kind.FINISHED)], Earlier()),
        ([started(), record(Kind.RETRIED, 1, 5.0), started(2), record(Kind.FINISHED, 2)], Earlier(wall_s=5.0)),
        ([started(), record(Kind.CUT_OFF, 1, 7.0), ASKED, started(2), record(Kind.FINISHED, 2)], Earlier(wall_s=7.0)),
        ([started(), ASKED, started(2), record(Kind.FINISHED, 2)], Earlier(untold=1)),  # the driver was killed
        (
            [started(), started(2), record(Kind.RETRIED, 2, 3.0), started(3), record(Kind.FINISHED, 3)],
            Earlier(wall_s=3.0, untold=1),
        ),
        ([started(), record(Kind.CUT_OFF, 1, "long"), started(2), record(Kind.FINISHED, 2)], Earlier(untold=1)),
        ([Record(kind=Kind.STARTED, value=None), started(), record(Kind.FINISHED)], Earlier()),
    ],
)
def test_what_came_before_the_attempt_that_ended_a_trial(records, before):
    assert list(earlier([ASKED, *records]).values()) == [before]


def test_an_attempt_after_an_end_is_another_story():
    """It was asked for: rerun=all, or a spoiled timing."""
    first = [started(), record(Kind.RETRIED, 1, 5.0), started(2), record(Kind.FINISHED, 2, 1.0)]
    again = [started(3), record(Kind.FINISHED, 3, 1.0)]
    assert earlier([*first, *again]) == {("a", 2): Earlier(wall_s=5.0), ("a", 3): Earlier()}


def test_the_ends_of_a_sweep_know_it_and_the_journal_has_it_once():
    trial = TRIALS[0].trial_id
    end = replace(ended(TRIALS[0]), attempt=2)
    assert "earlier_s" not in end.to_json()
    journal = [ASKED, started(trial_id=trial), record(Kind.CUT_OFF, 1, 7.0, trial), started(2, trial_id=trial)]
    found = ends_under([*journal, Record(kind=Kind.FINISHED, value=end.to_json())], {})
    assert (found[trial].earlier_s, found[trial].wall_s) == (7.0, end.wall_s)


def test_all_attempts_count_as_spent_whatever_became_of_them():
    journal = [
        record(Kind.RETRIED, 1, 5.0, gpus_held=2),
        record(Kind.CUT_OFF, 2, 10.0, gpus_held=2),
        record(Kind.FINISHED, 3, 20.0, gpus=2),
        record(Kind.RETRIED, 1, 100.0, "b"),  # of an earlier version, which did not tell
        record(Kind.FINISHED, 2, 100.0, "b", gpus=1),
        record(Kind.PROBED, None, 1.0, "c", gpus=4),
    ]
    assert spent_gpu_s(journal) == 70 + 200 + 4
