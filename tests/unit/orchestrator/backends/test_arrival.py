import pytest

from orchestrator.backends.arrival import ARRIVAL_S, arrived, can_run, first_shape, has_come, patience_s
from orchestrator.scheduling.node import Node
from orchestrator.scheduling.placement import Shape
from sweeps.mistakes import MistakesError
from tests.contract.trials import trial
from tests.unit.orchestrator.requests import request

HEAD = Node(name="head", cpus=0, gpus=0)
WORKER = Node(name="worker", cpus=2, gpus=0)
GPU = Node(name="gpu", cpus=2, gpus=1)


class Clock:
    """Time that passes only while somebody sleeps."""

    now_s = 100.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def ask(clock, nodes, stopping=lambda: False, labels=(), wait_s=0.0, device="auto"):
    asked = request(address="10.0.0.1:6379", labels=dict(labels), wait_s=wait_s, device=device).cluster
    return arrived(nodes, asked, stopping=stopping, clock=clock, sleep=clock.sleep)


def test_a_head_without_cpus_can_run_nothing():
    assert not can_run(()) and not can_run([HEAD]) and can_run([HEAD, WORKER])


def test_nodes_that_are_there_are_not_waited_for():
    clock = Clock()
    assert ask(clock, lambda: [WORKER]) == [WORKER] and clock.now_s == 100.0


def test_a_node_that_comes_late_is_waited_for():
    clock = Clock()
    assert ask(clock, lambda: [HEAD, WORKER] if clock.now_s >= 110 else [HEAD]) == [HEAD, WORKER]
    assert clock.now_s == 110.0


@pytest.mark.parametrize(
    ("nodes", "labels", "told"),
    [
        ([], {}, "it has no node that is alive"),
        ([HEAD], {}, "none of its 1 nodes has CPUs"),
        ([], {"market-type": "spot"}, "it has no node with the labels {'market-type': 'spot'} that is alive"),
    ],
)
def test_a_cluster_without_any_is_refused_in_time(nodes, labels, told):
    clock = Clock()
    with pytest.raises(MistakesError) as refused:
        ask(clock, lambda: nodes, labels=labels)
    (line,) = refused.value.mistakes
    assert line == f"cluster.address=10.0.0.1:6379: {told}, and none came within 30 s (cluster.wait_s waits longer)"
    assert clock.now_s == 130.0


def test_a_signal_ends_the_wait():
    clock = Clock()
    assert ask(clock, lambda: [], stopping=lambda: clock.now_s > 105) == []


def test_wait_s_waits_longer_and_never_shorter():
    assert patience_s(0.0) == patience_s(5.0) == ARRIVAL_S and patience_s(600.0) == 600.0
    clock = Clock()
    with pytest.raises(MistakesError, match="none came within 90 s"):
        ask(clock, lambda: [HEAD], wait_s=90.0)
    assert clock.now_s == 190.0


def test_gpus_that_are_asked_for_are_waited_for_where_that_may_help():
    clock = Clock()
    found = ask(clock, lambda: [WORKER, GPU] if clock.now_s >= 110 else [WORKER], wait_s=60.0, device="cuda")
    assert found == [WORKER, GPU] and clock.now_s == 110.0
    clock = Clock()
    assert ask(clock, lambda: [WORKER], wait_s=60.0, device="cuda") == [WORKER] and clock.now_s == 160.0
    for wait_s, device in ((0.0, "cuda"), (60.0, "auto"), (60.0, "cpu")):
        assert has_come([WORKER], request(wait_s=wait_s, device=device).cluster)


def test_room_for_the_smallest_gang_is_asked_for_first():
    pair, single = trial("pair", "quick", ranks=2), trial("single", "quick")
    assert first_shape([pair, single]) == Shape.of(single)
