import os

import pytest

from orchestrator.backends import gpu_quarantine
from orchestrator.backends.gpu_quarantine import Quarantine, take
from orchestrator.schedule.cluster import Node


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(gpu_quarantine, "WAIT_S", 0.2)


def ended():
    """The processes that took GPUs so far are gone."""
    while gpu_quarantine._held:
        os.close(gpu_quarantine._held.pop())


def test_a_node_has_fewer_gpus():
    quarantine = Quarantine()
    quarantine.add(["a/1", "a/1", "b/0"])
    nodes = (Node(name="x", cpus=8, gpus=4, node_id="a"), Node(name="y", cpus=8, gpus=1, node_id="b"))
    assert [node.gpus for node in quarantine.without(nodes)] == [3, 0]
    assert quarantine.node_ids == {"a", "b"}


def test_healthy_gpus_are_those_that_ray_gave(tmp_path):
    assert take(["2", "3"], (), 0, tmp_path) == ["2", "3"]
    assert take(["0"], {"1"}, 4, tmp_path) == ["0"]
    ended()


def test_lost_gpu_is_replaced_by_a_free_one(tmp_path):
    assert take(["0"], {"1"}, 3, tmp_path) == ["0"]
    assert take(["1"], {"1"}, 3, tmp_path) == ["2"]
    ended()
    assert take(["1"], {"1"}, 3, tmp_path) == ["0"]
    assert take(["0"], {"1"}, 3, tmp_path) == ["2"]  # the process before took GPU 0
    ended()


def test_previous_process_of_a_gpu_is_waited_for(tmp_path, monkeypatch):
    assert take(["1"], {"0"}, 2, tmp_path) == ["1"]
    looks = iter(range(3))

    def sleep(seconds):
        if next(looks) == 2:
            ended()

    monkeypatch.setattr(gpu_quarantine, "WAIT_S", 60.0)
    monkeypatch.setattr(gpu_quarantine.time, "sleep", sleep)
    assert take(["0"], {"0"}, 2, tmp_path) == ["1"]
    ended()


def test_lost_gpu_stays_if_there_is_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_quarantine.time, "sleep", lambda seconds: pytest.fail("nobody is to be waited for"))
    assert take(["0"], {"0"}, 1, tmp_path) == ["0"]
    assert take(["GPU-1234"], {"GPU-1234"}, 1, tmp_path) in (["GPU-1234"], ["0"])
    ended()
