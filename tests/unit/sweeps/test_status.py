from sweeps.status import Status


def test_ends_are_ordered_from_worst_to_best():
    assert list(Status) == ["failed", "infeasible", "oom", "diverged", "timeout", "skipped", "ok"]


def test_which_ends_are_results():
    assert {status for status in Status if status.is_result()} == {"infeasible", "oom", "diverged", "timeout", "ok"}


def test_only_infeasible_trials_are_tried_again_by_themselves():
    assert [status for status in Status if not status.is_final()] == [Status.INFEASIBLE]


def test_which_ends_stand_when_a_sweep_is_taken_up_again():
    stands = {rerun: {status for status in Status if status.stands(rerun)} for rerun in ("none", "failed", "all")}
    assert stands["none"] == set(Status) - {"infeasible"}
    assert stands["failed"] == {"oom", "diverged", "timeout", "ok"}
    assert stands["all"] == set()
