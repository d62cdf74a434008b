"""Test a head that dies and a node that is about to go: trials continue elsewhere or later, without a charge."""

import signal
import time
from dataclasses import dataclass

import pytest

from tests.drivers.place import SMALL, Place, wait_for
from tests.drivers.ray_head import RayHead, free_port
from tests.integration.test_several_nodes import raylets

__all__ = ["raylets"]

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Head:
    """A cluster of one node."""

    port: int
    node: RayHead


@pytest.fixture
def head(tmp_path):
    port = free_port()
    node = RayHead(f"--port={port}", "--include-dashboard=false", EXECUTIONS=str(tmp_path / "executions.txt"))
    node.start()
    yield Head(port, node)
    node.kill()


def test_a_sweep_continues_after_its_head_dies(head, tmp_path):
    place = Place(tmp_path, "sweep=traced", *SMALL, "report.html=false", "trainable.pause_s=2", "retries=0")
    on_cluster = ("backend=ray", f"cluster.address=127.0.0.1:{head.port}", "resources.device=cpu")
    process = place.start_afresh(*on_cluster)
    wait_for(lambda: len(place.ran()) == 2, process)
    head.node.kill()
    began = time.monotonic()
    out, err = process.communicate(timeout=120)
    print(f"the driver ended {time.monotonic() - began:.0f} s after its head, with status {process.returncode}")
    assert process.returncode not in (0, 2)
    assert "the same command continues" in err, err
    finished, begun = set(place.finished()), len(place.ran())
    head.node.start()
    process = place.start_afresh(*on_cluster)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert len(place.finished()) == 4 == len(set(place.finished()))
    assert not finished & set(place.ran()[begun:])
    assert not [record for record in place.journal() if record["kind"] == "retried"]


@pytest.mark.parametrize("raylets", [2], indirect=True)
def test_a_trial_moves_before_its_node_is_taken_away(raylets):  # noqa: F811
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    process = raylets.start("retries=0")
    wait_for(lambda: len(raylets.executed()) == 4, process)  # two gangs of two, a node each
    leaving = raylets.others[0].node_id
    (struck,) = {trial for trial, _, node, _ in raylets.executed() if node == leaving}
    client = GcsClient(address=raylets.cluster.address)
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    told = time.monotonic()
    accepted, why = client.drain_node(leaving, reason, "spot notice", (time.time_ns() // 10**6) + 60_000)
    assert accepted, why
    wait_for(lambda: raylets.journal("retried"), process)
    print(f"stopped {time.monotonic() - told:.1f} s after the notice")
    raylets.release.touch()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    assert raylets.trials().status.tolist() == ["ok", "ok"]
    (retried,) = raylets.journal("retried")
    assert (retried["trial_id"], retried["cause"]) == (struck, "node")
    again = [node for trial, rank, node, _ in raylets.executed() if trial == struck and rank == 0]
    assert len(again) == 2 and again[1] != leaving


@pytest.mark.parametrize("raylets", [1], indirect=True)
@pytest.mark.parametrize("noticed", [True, False], ids=["waits for another", "just lost"])
def test_a_signal_ends_a_driver_without_its_node(raylets, noticed):  # noqa: F811
    process = raylets.start("sweep.axes.seed=[0]", "cluster.wait_s=90")
    wait_for(lambda: len(raylets.executed()) == 2, process)
    raylets.cluster.remove_node(raylets.others[0], allow_graceful=False)
    wait_for(lambda: not noticed or raylets.journal("retried"), process)
    time.sleep(1.0)
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    took_s = time.monotonic() - asked
    print(f"exit {took_s:.1f} s after the signal")
    assert process.returncode == 143 and took_s < 10.0, err
    assert not noticed or "tables are not finished" not in err
    assert len(raylets.executed()) == 2
    raylets.cluster.add_node(num_cpus=1, runtime_env_dir_name="new_runtime_resources")
    raylets.release.touch()
    out, err = raylets.start("sweep.axes.seed=[0]", "cluster.wait_s=90").communicate(timeout=180)
    assert raylets.trials().status.tolist() == ["ok"], out + err
