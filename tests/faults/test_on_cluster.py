"""The head of a cluster that dies, and a node under notice: trials go on elsewhere or later, and are not charged."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.drivers.place import SMALL, Place, wait_for
from tests.integration.test_several_nodes import raylets, until

__all__ = ["raylets"]

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


class Head:
    """A cluster of one node, which can be killed, and started again at the same address."""

    def __init__(self, environment: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._environment = os.environ | environment | {"RAY_USAGE_STATS_ENABLED": "0"}

    def start(self) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
        self._process = subprocess.Popen(
            [*command, "--num-gpus=0", f"--port={self.port}", "--include-dashboard=false"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
        )
        assert self._process.stdout
        deadline = time.monotonic() + 120
        while "--address" not in self._process.stdout.readline():
            assert time.monotonic() < deadline and self._process.poll() is None

    def kill(self) -> None:
        everybody = psutil.Process(self._process.pid).children(recursive=True)
        for process in [*everybody, self._process]:
            process.kill()
        self._process.communicate()
        psutil.wait_procs(everybody, timeout=30)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    found = Head({"EXECUTIONS": str(tmp_path / "executions.txt")})
    found.start()
    yield found
    found.kill()


def test_a_head_that_dies_ends_the_driver_and_a_new_one_continues(head: Head, tmp_path: Path) -> None:
    place = Place(tmp_path, "sweep=traced", *SMALL, "report.html=false", "trainable.pause_s=2", "retries=0")
    on_cluster = ("backend=ray", f"cluster.address=127.0.0.1:{head.port}", "resources.device=cpu")
    process = place.start_afresh(*on_cluster)
    wait_for(lambda: len(place.ran()) == 2, process)
    head.kill()
    began = time.monotonic()
    out, err = process.communicate(timeout=120)
    print(f"the driver ended {time.monotonic() - began:.0f} s after its head, with status {process.returncode}")
    assert process.returncode not in (0, 2)
    assert "the same command continues" in err, err
    finished, begun = set(place.finished()), len(place.ran())
    head.start()
    process = place.start_afresh(*on_cluster)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert len(place.finished()) == 4 == len(set(place.finished()))
    assert not finished & set(place.ran()[begun:])
    assert not [each for each in place.journal() if each["kind"] == "retried"]


@pytest.mark.parametrize("raylets", [2], indirect=True)
def test_a_trial_moves_before_its_node_is_taken_away(raylets: Any) -> None:  # noqa: F811
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    process = raylets.start("retries=0")
    until(lambda: len(raylets.executed()) == 4, process)  # two gangs of two, a node each
    leaving = raylets.other.node_id
    (struck,) = {trial for trial, _, node, _ in raylets.executed() if node == leaving}
    client = GcsClient(address=raylets.cluster.address)
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    told = time.monotonic()
    accepted, why = client.drain_node(leaving, reason, "spot notice", (time.time_ns() // 10**6) + 60_000)
    assert accepted, why
    until(lambda: raylets.journal("retried"), process)
    print(f"stopped {time.monotonic() - told:.1f} s after the notice")
    raylets.release.touch()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    assert raylets.trials().status.tolist() == ["ok", "ok"]
    (retried,) = raylets.journal("retried")
    assert (retried["trial_id"], retried["cause"]) == (struck, "node") and "about to be taken away" in retried["note"]
    again = [node for trial, rank, node, _ in raylets.executed() if trial == struck and rank == 0]
    assert len(again) == 2 and again[1] != leaving
