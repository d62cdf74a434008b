"""Test a sweep over two hosts with a shared network and folder: a gang and a command over both, and a lost host."""

import pytest

from tests.drivers.hosts import INTERFACE, can_be_made, two_hosts
from tests.drivers.place import wait_for
from tests.drivers.ray_head import RayHead
from tests.integration.test_command_over_nodes import MODES, TORCHRUN, TRAINING, ended, start
from tests.integration.test_several_nodes import Nodes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_be_made(), reason="needs the right to make namespaces")]

PORT = 6399


class Cluster:
    """Ray's head and the driver on one host; a second node on the other host."""

    def __init__(self, folder, hosts):
        self.hosts = hosts
        self.address = f"{hosts[0].address}:{PORT}"
        self.nodes = Nodes(folder, self)
        told = self.nodes.environment | {
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
        }
        self.processes = []
        for host, where in ((hosts[0], ("--head", f"--port={PORT}")), (hosts[1], (f"--address={self.address}",))):
            self.processes.append(RayHead(*where, host=host, **told))
            self.processes[-1].start()

    def end(self):
        self.nodes.close()
        for process in reversed(self.processes):
            process.kill()


@pytest.fixture
def cluster(tmp_path):
    with two_hosts() as hosts:
        made = Cluster(tmp_path, hosts)
        try:
            yield made
        finally:
            made.end()


@pytest.mark.timeout(1200)
def test_a_gang_survives_an_unplugged_host(cluster):
    nodes = cluster.nodes
    (nodes.folder / "train.py").write_text(TRAINING)  # before the first sweep, whose code all files of the folder are
    nodes.release.touch()
    process = nodes.start("sweep.axes.gpus=[4]", "sweep.axes.seed=[0]", host=cluster.hosts[0])
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    (trial,) = nodes.trials().to_dict("records")
    assert (trial["status"], trial["ranks"], trial["ranks_summed"]) == ("ok", 4, 4.0)
    assert len({node for _, _, node, _ in nodes.executed()}) == 2
    logs = [nodes.results / "trials" / trial["trial_id"] / f"rank{rank}.log" for rank in range(4)]
    assert all(f"rank {rank} on node" in log.read_text() for rank, log in enumerate(logs))

    axes = ("sweep.axes.gpus=[4]", "sweep.axes.nodes=[2]", f"{MODES}=[together]")
    torchrun = TORCHRUN.replace("train.py", "{source_dir}/train.py")  # a word for bash is no file's name
    command = f"bash -c 'echo $MASTER_ADDR; hostname -I; exec {torchrun} 20 0'"
    (trial,) = ended(nodes, "command", start(nodes, "command", command, *axes, host=cluster.hosts[0]))
    assert (trial["status"], trial["ranks"], trial["workers"], trial["steps"]) == ("ok", 2, 4, 20)
    folder = nodes.folder / "results/command/trials" / trial["trial_id"]
    lines = [(folder / name).read_text().split() for name in ("stdout.log", "stdout.node1.log")]
    own = [addresses[1] for addresses in lines]
    assert {addresses[0] for addresses in lines} == {own[0]} and set(own) == {host.address for host in cluster.hosts}

    nodes.release.unlink()
    process = nodes.start("sweep.axes.gpus=[2]", host=cluster.hosts[0])
    wait_for(lambda: len(nodes.executed()) == 4 + 4, process)  # two gangs of two, a host each
    cluster.hosts[1].unplug()
    wait_for(lambda: nodes.journal("retried"), process)
    nodes.release.touch()  # the other one's end makes room
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    assert nodes.trials().status.tolist() == ["ok", "ok", "ok"]
    (retried,) = nodes.journal("retried")
    assert retried["cause"] == "node"
    places = [node for trial, rank, node, _ in nodes.executed() if trial == retried["trial_id"] and rank == 0]
    assert len(places) == 2 and len(set(places)) == 2 and len(nodes.executed()) == 4 + 6
