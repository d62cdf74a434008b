import pytest

from orchestrator.schedule.cluster import Node, Shape
from orchestrator.schedule.waiting_for_nodes import (
    EMPTY_CLUSTER_S,
    can_run,
    first_nodes,
    first_shape,
    nodes_ready,
    patience_s,
)
from sweeps.errors import ConfigError
from tests.contract.trials import trial
from tests.unit.orchestrator.requests import request

HEAD = Node(name="head", cpus=0, gpus=0)
WORKER = Node(name="worker", cpus=2, gpus=0)
GPU = Node(name="gpu", cpus=2, gpus=1)


class Clock:
    """Time that passes only during a sleep."""

    now_s = 100.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def wait(clock, nodes, stopping=lambda: False, labels=(), wait_s=0.0, device="auto"):
    cluster = request(address="10.0.0.1:6379", labels=dict(labels), wait_s=wait_s, device=device).cluster
    return first_nodes(nodes, cluster, stopping=stopping, clock=clock, sleep=clock.sleep)


def test_head_without_cpus_can_run_nothing():
    assert not can_run(()) and not can_run([HEAD]) and can_run([HEAD, WORKER])


def test_existing_nodes_are_returned_at_once():
    clock = Clock()
    assert wait(clock, lambda: [WORKER]) == [WORKER] and clock.now_s == 100.0


def test_late_node_is_waited_for():
    clock = Clock()
    assert wait(clock, lambda: [HEAD, WORKER] if clock.now_s >= 110 else [HEAD]) == [HEAD, WORKER]
    assert clock.now_s == 110.0


@pytest.mark.parametrize(
    ("nodes", "labels", "parts"),
    [([], {}, ["no node"]), ([HEAD], {}, ["1 nodes", "CPUs"]), ([], {"market-type": "spot"}, ["market-type", "spot"])],
)
def test_cluster_without_nodes_is_refused_in_time(nodes, labels, parts):
    clock = Clock()
    with pytest.raises(ConfigError) as refused:
        wait(clock, lambda: nodes, labels=labels)
    (line,) = refused.value.errors
    assert line.startswith("cluster.address=10.0.0.1:6379: ")
    assert all(part in line for part in [*parts, "30 s", "cluster.wait_s"])
    assert clock.now_s == 130.0


def test_signal_ends_the_wait():
    clock = Clock()
    assert wait(clock, lambda: [], stopping=lambda: clock.now_s > 105) == []


def test_wait_s_only_lengthens_the_wait():
    assert patience_s(0.0) == patience_s(5.0) == EMPTY_CLUSTER_S and patience_s(600.0) == 600.0
    clock = Clock()
    with pytest.raises(ConfigError, match="90 s"):
        wait(clock, lambda: [HEAD], wait_s=90.0)
    assert clock.now_s == 190.0


def test_requested_gpus_are_waited_for_if_wait_s_allows():
    clock = Clock()
    found = wait(clock, lambda: [WORKER, GPU] if clock.now_s >= 110 else [WORKER], wait_s=60.0, device="cuda")
    assert found == [WORKER, GPU] and clock.now_s == 110.0
    clock = Clock()
    assert wait(clock, lambda: [WORKER], wait_s=60.0, device="cuda") == [WORKER] and clock.now_s == 160.0
    for wait_s, device in ((0.0, "cuda"), (60.0, "auto"), (60.0, "cpu")):
        assert nodes_ready([WORKER], request(wait_s=wait_s, device=device).cluster)


def test_smallest_gang_is_requested_first():
    pair, single = trial("pair", "quick", ranks=2), trial("single", "quick")
    assert first_shape([pair, single]) == Shape.of(single)
