import pytest

from orchestrator.ray_gang import bundles
from orchestrator.ray_queue import may_start
from sweeps.feasibility import Node
from sweeps.trial import Gang, TrialSpec
from tests.contract.trials import trial

FOUR_CORES = (Node(name="a", cpus=2, gpus=0), Node(name="b", cpus=2, gpus=0))


def shared(ranks: int) -> TrialSpec:
    return trial(f"shared{ranks}", "quick", ranks=ranks, timing="shared")


@pytest.mark.parametrize(
    ("next_ranks", "running", "allowed"),
    [(1, [1, 1, 1], True), (2, [1, 1, 1], False), (2, [2], True), (4, [], True), (9, [], True)],
)
def test_trials_start_while_there_is_room(next_ranks: int, running: list[int], allowed: bool) -> None:
    assert may_start(shared(next_ranks), [shared(ranks) for ranks in running], FOUR_CORES) is allowed


def test_an_exclusive_trial_runs_alone() -> None:
    exclusive = trial("exclusive", "quick", timing="exclusive")
    assert may_start(exclusive, [], FOUR_CORES)
    assert not may_start(exclusive, [shared(1)], FOUR_CORES)
    assert not may_start(shared(1), [exclusive], FOUR_CORES)


def test_a_gang_is_reserved_as_a_whole_with_rank_i_in_bundle_i() -> None:
    request = bundles(Gang(ranks=2, gpus_per_rank=1, cpus_per_rank=4))
    assert request.head_bundle_is_empty and request.strategy == "PACK"
    assert request.bundles == [{"CPU": 4.0, "GPU": 1.0}] * 2
    assert bundles(Gang(ranks=1, gpus_per_rank=0.25, cpus_per_rank=1)).bundles == [{"CPU": 1.0, "GPU": 0.25}]


def test_gangs_of_one_shape_make_equal_requests() -> None:
    shape = Gang(ranks=2, gpus_per_rank=0, cpus_per_rank=1)
    assert bundles(shape) == bundles(Gang(ranks=2, gpus_per_rank=0, cpus_per_rank=1))
    assert bundles(shape) != bundles(Gang(ranks=1, gpus_per_rank=0, cpus_per_rank=2))
