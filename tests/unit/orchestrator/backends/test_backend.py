import pytest

from orchestrator.backends.backend import GuardedListener, Limits, Watch
from sweeps.rank_exit import Cause
from tests.contract.trials import Recorder


def watch(ranks: int = 2, **limits: float) -> Watch:
    return Watch(Limits(**limits), ranks=ranks, now=100.0)


def test_without_limits_nothing_is_overdue() -> None:
    assert watch().overdue(1e9) is None and watch().look_again_s() is None


def test_a_trial_may_take_its_time_limit_and_no_longer() -> None:
    timed = watch(time_limit_s=10)
    assert timed.overdue(109.9) is None
    found = timed.overdue(110)
    assert found and (found.cause, found.rank) == (Cause.TIME_LIMIT, None)


def test_the_rank_that_stopped_first_is_at_the_root() -> None:
    hung = watch(hang_s=10)
    hung.heard({0: 1, 1: 1}, 101)
    hung.heard({0: 2, 1: 1}, 102)
    for now in range(103, 111):
        hung.heard({0: 2, 1: 1}, now)
        assert hung.overdue(now) is None
    hung.heard({0: 2, 1: 1}, 111)
    found = hung.overdue(111)
    assert found and (found.cause, found.rank) == (Cause.HANG, 1) and found.note.startswith("hangs")


def test_a_rank_that_does_not_answer_is_at_the_root() -> None:
    hung = watch(hang_s=10)
    hung.heard({0: 1, 1: 1}, 105)
    for now in range(106, 116):
        hung.heard({0: 1}, now)
    found = hung.overdue(116)
    assert found and found.rank == 1 and found.note.startswith("does not answer")


def test_a_process_may_take_its_time_to_start() -> None:
    starting = watch(hang_s=10)
    starting.heard({0: 0}, 101)
    starting.heard({0: 1}, 150)
    assert starting.overdue(159) is None
    found = starting.overdue(160)
    assert found and found.rank == 1 and found.note.startswith("does not answer")


def test_a_rank_that_has_ended_need_not_move() -> None:
    going = watch(hang_s=10)
    going.ended(1)
    going.heard({0: 1}, 109)
    assert going.overdue(115) is None
    going.ended(0)
    assert going.overdue(1000) is None


@pytest.mark.parametrize(("hang_s", "every_s"), [(0.1, 0.25), (30, 3), (1800, 10)])
def test_ranks_are_asked_a_few_times_within_the_limit(hang_s: float, every_s: float) -> None:
    assert watch(hang_s=hang_s).look_again_s() == every_s


def test_listener_exception_is_raised_again() -> None:
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


def test_guarded_listener_forwards_calls() -> None:
    recorder = Recorder()
    with GuardedListener(recorder).listening() as listener:
        listener.ticked()
    assert recorder.ticks == 1
