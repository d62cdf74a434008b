import socket
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from orchestrator.backends.backend_choice import check_reachable, first_nodes, make_backend, nodes_ready
from orchestrator.schedule.cluster import Node, can_run
from orchestrator.schedule.queue import EMPTY_CLUSTER_S, patience_s
from sweeps.errors import ConfigError
from tests.unit.orchestrator.requests import request


@pytest.mark.parametrize("key", ["cluster.address", "RAY_ADDRESS"])
def test_silent_address_is_refused_with_its_setting(key, monkeypatch):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and never listens
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        if key == "RAY_ADDRESS":
            monkeypatch.setenv(key, address)
        asked = request(backend="ray", address=address if key == "cluster.address" else None)
        with pytest.raises(ConfigError, match=f"^{key}={address}: no cluster answers there"):
            check_reachable(asked)


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_ipv6_address_in_brackets_is_accepted():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening:
        check_reachable(request(backend="ray", address=f"[::1]:{listening.getsockname()[1]}"))


@pytest.mark.parametrize("address", ["ray://nowhere:10001", "http://127.0.0.1:8265"])
def test_address_of_another_service_is_refused(address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"^RAY_ADDRESS={address} .*HOST:6379"):
        check_reachable(request(backend="ray", address=None))
    check_reachable(request(backend="inprocess", address=None))


@pytest.mark.parametrize("address", [None, "auto", "10.0.0.1:6379"])
def test_existing_ray_connection_is_refused(address, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(ConfigError, match=r"already connected to Ray.*ray\.shutdown\(\) first"):
        check_reachable(request(backend="ray", address=address))
    check_reachable(request(backend="inprocess", address=None))


@pytest.mark.parametrize("address", [None, "auto"])
def test_unset_and_auto_addresses_are_left_to_ray(address):
    check_reachable(request(backend="ray", address=address))


@pytest.mark.parametrize("key", ["cluster.address", "RAY_ADDRESS"])
@pytest.mark.parametrize(("error", "token"), [("Failed to connect to 10.0.0.1", "/secret/token"), ("no answer", "")])
def test_connection_error_names_the_setting_and_the_token(key, error, token, monkeypatch):
    def not_rays(*_, **__):
        raise ConnectionError(error)

    ours = "orchestrator.backends.ray"
    monkeypatch.setitem(sys.modules, f"{ours}.backend", SimpleNamespace(RayBackend=not_rays))
    monkeypatch.setitem(sys.modules, f"{ours}.tune_extensions", SimpleNamespace(Extensions=MagicMock()))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # which showing a token would set
    asked = request(backend="ray", address="10.0.0.2:6379" if key == "cluster.address" else None)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/secret/token")
    with pytest.raises(ConfigError) as refused:
        make_backend(asked)
    (line,) = refused.value.errors
    assert line.startswith(f"{key}: {error}") and line.endswith(token) and ("RAY_AUTH_TOKEN" in line) is bool(token)


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
    asked = request(address="10.0.0.1:6379", labels=dict(labels), device=device)
    backend = SimpleNamespace(nodes=nodes)
    return first_nodes(backend, asked, wait_s, stopping=stopping, clock=clock, sleep=clock.sleep)


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
    nodes = wait(clock, lambda: [WORKER, GPU] if clock.now_s >= 110 else [WORKER], wait_s=60.0, device="cuda")
    assert nodes == [WORKER, GPU] and clock.now_s == 110.0
    clock = Clock()
    assert wait(clock, lambda: [WORKER], wait_s=60.0, device="cuda") == [WORKER] and clock.now_s == 160.0
    for wait_s, device in ((0.0, "cuda"), (60.0, "auto"), (60.0, "cpu")):
        assert nodes_ready([WORKER], request(device=device), wait_s)
