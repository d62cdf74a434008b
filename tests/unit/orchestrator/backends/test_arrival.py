from types import SimpleNamespace

import pytest

from orchestrator.backends.arrival import arrived, can_run
from sweeps.feasibility import Node
from sweeps.mistakes import MistakesError

HEAD = Node(name="head", cpus=0, gpus=0)
WORKER = Node(name="worker", cpus=2, gpus=0)


class Clock:
    """Time that passes only while somebody sleeps."""

    now_s = 100.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def ask(clock, nodes, stopping=lambda: False, labels=()):
    request = SimpleNamespace(address="10.0.0.1:6379", labels=dict(labels))
    return arrived(nodes, request, within_s=30.0, stopping=stopping, clock=clock, sleep=clock.sleep)


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
