import socket
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from orchestrator.backends.choose import check_reachable, make_backend
from sweeps.errors import ConfigError
from tests.unit.orchestrator.requests import request


@pytest.mark.parametrize("key", ["cluster.address", "RAY_ADDRESS"])
def test_silent_address_is_refused_with_its_setting(key, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
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
def test_unset_and_auto_addresses_are_left_to_ray(address, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
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
