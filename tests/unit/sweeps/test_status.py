from sweeps.status import Status


def test_statuses_are_ordered_from_worst_to_best():
    assert list(Status) == ["failed", "infeasible", "oom", "diverged", "timeout", "skipped", "ok"]


def test_failed_and_skipped_are_no_results():
    assert {status for status in Status if status.is_result()} == {"infeasible", "oom", "diverged", "timeout", "ok"}


def test_only_infeasible_is_not_final():
    assert [status for status in Status if not status.is_final()] == [Status.INFEASIBLE]


def test_rerun_decides_which_statuses_a_continued_sweep_keeps():
    stands = {rerun: {status for status in Status if status.stands(rerun)} for rerun in ("none", "failed", "all")}
    assert stands["none"] == set(Status) - {"infeasible"}
    assert stands["failed"] == {"oom", "diverged", "timeout", "ok"}
    assert stands["all"] == set()
