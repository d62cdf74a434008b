from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends.gang_outcome import died, outcome_of
from sweeps.rank_exit import Cause, RankExit
from sweeps.status import Status

OOM = RankExit(rank=3, status=Status.OOM, note="out of memory")
LOST = died(2, "killed", "trace")
DIVERGED = RankExit(rank=1, status=Status.DIVERGED, note="the loss is nan")
ERROR = RankExit(rank=0, status=Status.FAILED, note="Connection closed", trace="Traceback")
BROKEN = RankExit(rank=2, status=Status.FAILED, note="ValueError: bad")
DIED_WITH_NODE = died(1, "node died", "", cause=Cause.NODE)


def ok(rank: int) -> RankExit:
    return RankExit(rank=rank, status=Status.OK, metrics={"accuracy": rank}, provenance={"host": f"n{rank}"})


@pytest.mark.parametrize(
    ("exits", "status", "note"),
    [
        ([ERROR, DIVERGED, LOST, OOM], Status.OOM, "rank 3: out of memory"),
        ([ERROR, DIVERGED, LOST], Status.FAILED, f"rank 2: {LOST.note}"),
        ([ERROR, DIVERGED], Status.DIVERGED, "rank 1: the loss is nan"),
        ([ERROR, BROKEN], Status.FAILED, "rank 2: ValueError: bad"),
        ([ERROR, DIED_WITH_NODE, LOST], Status.FAILED, f"rank 1: {DIED_WITH_NODE.note}"),
        ([ERROR, ok(1)], Status.FAILED, "rank 0: Connection closed"),
        ([replace(BROKEN, rank=3), BROKEN], Status.FAILED, "rank 2: ValueError: bad"),
        ([ok(1), ok(0)], Status.OK, ""),
    ],
)
def test_root_cause_sets_status_and_note(exits: list[RankExit], status: Status, note: str) -> None:
    outcome = outcome_of(exits, world_size=4, wall_s=1.5)
    assert (outcome.status, outcome.note, outcome.wall_s) == (status, note, 1.5)


@given(st.permutations([ERROR, DIVERGED, LOST, OOM, ok(4)]))
def test_root_cause_does_not_depend_on_the_order(exits: list[RankExit]) -> None:
    assert outcome_of(exits, world_size=5, wall_s=0.0).note == "rank 3: out of memory"


def test_a_single_rank_needs_no_name() -> None:
    assert outcome_of([ERROR], world_size=1, wall_s=0.0).note == "Connection closed"
    assert outcome_of([ERROR], world_size=1, wall_s=0.0).trace == "Traceback"


def test_figures_are_those_of_the_lowest_rank_that_answered() -> None:
    assert outcome_of([ok(1), ok(0)], world_size=2, wall_s=0.0).metrics == {"accuracy": 0}
    lost_first = outcome_of([died(0, "killed", ""), ok(1)], world_size=2, wall_s=0.0)
    assert (lost_first.metrics, lost_first.provenance) == ({"accuracy": 1}, {"host": "n1"})
    assert outcome_of([LOST], world_size=3, wall_s=0.0).metrics == {}


def test_trial_that_gave_up_is_skipped_by_early_stop() -> None:
    exits = [RankExit(rank=rank, status=Status.SKIPPED, note="early stop: …", metrics={"epochs": 2}) for rank in (0, 1)]
    outcome = outcome_of(exits, world_size=2, wall_s=1.0)
    assert (outcome.status, outcome.skipped_by, outcome.note) == (Status.SKIPPED, "early_stop", "early stop: …")
    assert outcome.metrics == {"epochs": 2}
