import socket
from collections import deque

import pytest

from sweeps import ports


def test_a_port_in_use_is_not_given_out(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", [port] * 100)
        with pytest.raises(OSError, match="no free port"):
            ports.free_port("127.0.0.1")


def test_a_free_port_can_be_listened_on():
    port = ports.free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert port in ports.PORTS


def test_the_next_trial_has_another_port(monkeypatch):
    monkeypatch.setattr(ports, "PORTS", range(21_000, 21_200))
    monkeypatch.setattr(ports, "_given", deque(maxlen=100))  # other tests of this process have chosen ports, too
    chosen = [ports.free_port() for _ in range(100)]
    assert len(set(chosen)) == 100
