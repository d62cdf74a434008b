import os
import socket
import sys
from pathlib import Path

import pytest

from orchestrator.backends.on_ray import rank as ray_rank
from orchestrator.backends.on_ray.rank import _free_port, _output_to


def test_a_port_in_use_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ray_rank, "_RENDEZVOUS_PORTS", [port] * 100)
        with pytest.raises(OSError, match="no free port"):
            _free_port("127.0.0.1")


def test_a_free_port_can_be_listened_on() -> None:
    port = _free_port("127.0.0.1")
    with socket.create_server(("127.0.0.1", port)):
        assert port in ray_rank._RENDEZVOUS_PORTS


def test_output_goes_to_the_log_and_then_where_it_went_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "trials" / "t" / "rank0.log"
    for _ in range(2):
        with _output_to(log):
            os.write(1, b"out\n")
            os.write(2, b"err\n")
    os.write(1, b"after\n")
    assert log.read_text() == "out\nerr\n" * 2
    assert capfd.readouterr() == ("after\n", "")
    assert not sys.stdout.closed
