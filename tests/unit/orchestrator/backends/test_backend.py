from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends.backend import GuardedListener, HangWatch, died, outcome_of
from orchestrator.config.settings import Settings
from sweeps.rank_exit import Cause, RankExit
from sweeps.status import Status
from tests.contract.trials import Recorder


def watch(ranks=2, **limits):
    return HangWatch(Settings(**{"hang_s": None, **limits}), ranks=ranks, now=100.0)


def test_without_limits_nothing_is_overdue():
    assert watch().overdue(1e9) is None and watch().look_again_s() is None


def test_a_trial_may_take_its_time_limit_and_no_longer():
    timed = watch(time_limit_s=10)
    assert timed.overdue(109.9) is None
    rank_exit = timed.overdue(110)
    assert rank_exit and (rank_exit.cause, rank_exit.rank) == (Cause.TIME_LIMIT, 0)


def test_the_rank_that_stopped_first_is_at_the_root():
    hung = watch(hang_s=10)
    hung.heard({0: 1, 1: 1}, 101)
    hung.heard({0: 2, 1: 1}, 102)
    for now in range(103, 111):
        hung.heard({0: 2, 1: 1}, now)
        assert hung.overdue(now) is None
    hung.heard({0: 2, 1: 1}, 111)
    rank_exit = hung.overdue(111)
    assert rank_exit and (rank_exit.cause, rank_exit.rank) == (Cause.HANG, 1) and rank_exit.note.startswith("hangs")


def test_a_rank_that_does_not_answer_is_at_the_root():
    hung = watch(hang_s=10)
    hung.heard({0: 1, 1: 1}, 105)
    for now in range(106, 116):
        hung.heard({0: 1}, now)
    rank_exit = hung.overdue(116)
    assert rank_exit and rank_exit.rank == 1 and rank_exit.note.startswith("does not answer")


def test_a_process_may_take_its_time_to_start():
    starting = watch(hang_s=10)
    starting.heard({0: 0}, 101)
    starting.heard({0: 1}, 150)
    assert starting.overdue(159) is None
    rank_exit = starting.overdue(160)
    assert rank_exit and rank_exit.rank == 1 and rank_exit.note.startswith("does not answer")


def test_a_rank_that_has_ended_need_not_move():
    going = watch(hang_s=10)
    going.ended(1)
    going.heard({0: 1}, 109)
    assert going.overdue(115) is None
    going.ended(0)
    assert going.overdue(1000) is None


@pytest.mark.parametrize(("hang_s", "every_s"), [(0.1, 0.25), (30, 3), (1800, 10)])
def test_ranks_are_asked_a_few_times_within_the_limit(hang_s, every_s):
    assert watch(hang_s=hang_s).look_again_s() == every_s


def test_listener_exception_is_raised_again():
    guarded = GuardedListener(Recorder())
    guarded.reraise()
    with pytest.raises(RuntimeError, match="wrapped"):
        try:
            with guarded.listening():
                raise OSError("disk full")
        except OSError as error:
            raise RuntimeError("wrapped") from error
    with pytest.raises(OSError, match="disk full"):
        guarded.reraise()


def test_guarded_listener_forwards_calls():
    recorder = Recorder()
    with GuardedListener(recorder).listening() as listener:
        listener.ticked()
    assert recorder.ticks == 1


OOM = RankExit(rank=3, cause=Cause.DEVICE_MEMORY, note="out of memory")
LOST = died(2, "killed", "trace")
DIVERGED = RankExit(rank=1, cause=Cause.DIVERGED, note="the loss is nan")
ERROR = RankExit(rank=0, cause=Cause.ERROR, note="Connection closed", trace="Traceback")
BROKEN = RankExit(rank=2, cause=Cause.ERROR, note="ValueError: bad")
DIED_WITH_NODE = died(1, "node died", "", cause=Cause.NODE)


RANKS = [f"rank {rank}" for rank in range(5)]


def ok(rank):
    return RankExit(rank=rank, metrics={"accuracy": rank}, provenance={"host": f"n{rank}"})


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
def test_root_cause_sets_status_and_note(exits, status, note):
    outcome = outcome_of(exits, names=RANKS, wall_s=1.5)
    assert (outcome.status, outcome.note, outcome.wall_s) == (status, note, 1.5)


@given(st.permutations([ERROR, DIVERGED, LOST, OOM, ok(4)]))
def test_root_cause_does_not_depend_on_the_order(exits):
    assert outcome_of(exits, names=RANKS, wall_s=0.0).note == "rank 3: out of memory"


def test_a_single_rank_needs_no_name():
    assert outcome_of([ERROR], names=RANKS[:1], wall_s=0.0).note == "Connection closed"
    assert outcome_of([ERROR], names=RANKS[:1], wall_s=0.0).trace == "Traceback"


def test_figures_are_those_of_the_lowest_rank_that_answered():
    assert outcome_of([ok(1), ok(0)], names=RANKS, wall_s=0.0).metrics == {"accuracy": 0}
    lost_first = outcome_of([died(0, "killed", ""), ok(1)], names=RANKS, wall_s=0.0)
    assert (lost_first.metrics, lost_first.provenance) == ({"accuracy": 1}, {"host": "n1"})
    assert outcome_of([LOST], names=RANKS, wall_s=0.0).metrics == {}


def test_trial_that_gave_up_is_skipped_by_early_stop():
    exits = [RankExit(rank=rank, cause=Cause.GIVEN_UP, note="early stop: …", metrics={"epochs": 2}) for rank in (0, 1)]
    outcome = outcome_of(exits, names=RANKS, wall_s=1.0)
    assert (outcome.status, outcome.skipped_by, outcome.note) == (Status.SKIPPED, "early_stop", "early stop: …")
    assert outcome.metrics == {"epochs": 2}
