import itertools

from sweeps.status import Status


def test_a_cell_is_as_bad_as_its_worst_seed():
    order = ["failed", "infeasible", "oom", "diverged", "timeout", "skipped", "ok"]
    for worse, better in itertools.combinations(order, 2):
        assert Status.worst([Status(better), Status(worse), Status("ok")]) == worse


def test_which_ends_are_results():
    assert {status for status in Status if status.is_result()} == {"infeasible", "oom", "diverged", "timeout", "ok"}


def test_only_infeasible_trials_are_tried_again_by_themselves():
    assert [status for status in Status if not status.is_final()] == [Status.INFEASIBLE]


def test_which_ends_stand_when_a_sweep_is_taken_up_again():
    stands = {rerun: {status for status in Status if status.stands(rerun)} for rerun in ("none", "failed", "all")}
    assert stands["none"] == set(Status) - {"infeasible"}
    assert stands["failed"] == {"oom", "diverged", "timeout", "ok"}
    assert stands["all"] == set()
