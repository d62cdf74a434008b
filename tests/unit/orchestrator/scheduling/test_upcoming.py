"""Which gangs can be foreseen to need processes of their own."""

from dataclasses import replace

from orchestrator.scheduling.node import Node
from orchestrator.scheduling.scheduler import Scheduler
from sweeps.trial import Gang, TrialSpec
from tests.contract.trials import trial

NODE = Node(name="one", cpus=64, gpus=4, node_id="1")


def on(gpus: int, name: str) -> TrialSpec:
    gang = Gang(ranks=gpus, gpus_per_rank=1, cpus_per_rank=16)
    return replace(trial(name, "quick", timing="device"), gpus=gpus, gang=gang)


def after_starts(*trials: TrialSpec) -> Scheduler:
    scheduler = Scheduler(trials, [NODE], lambda each: 10.0)
    while scheduler.next(0.0):
        pass
    return scheduler


def test_where_all_have_started_nothing_is_foreseen() -> None:
    assert after_starts(on(4, "a")).upcoming() is None


def test_a_trial_of_the_same_shape_takes_the_processes_that_are_there() -> None:
    assert after_starts(on(4, "a"), on(4, "b")).upcoming() is None


def test_small_gangs_that_follow_a_large_one_are_foreseen_as_far_as_they_wait_and_fit() -> None:
    found = after_starts(on(4, "a"), *(on(1, f"small {number}") for number in range(3))).upcoming()
    assert found and (found.shape.gang.ranks, found.gangs, found.ranks_a_node) == (1, 3, 3)
    assert found.nodes == (NODE,) and found.beside == {"device"}
    found = after_starts(on(4, "a"), *(on(1, f"small {number}") for number in range(9))).upcoming()
    assert found and found.gangs == 4


def test_a_large_gang_is_foreseen_while_small_ones_run() -> None:
    scheduler = Scheduler([on(1, "a"), on(1, "b")], [NODE], lambda each: 10.0)
    assert scheduler.next(0.0) and scheduler.next(0.0)
    scheduler.add([on(4, "large")])
    assert scheduler.next(1.0) is None
    found = scheduler.upcoming()
    assert found and (found.shape.gang.ranks, found.gangs, found.ranks_a_node) == (4, 1, 4)
