"""Test an autoscaling cluster without nodes: nodes come for the trials, and go when the driver ends in any way."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pandas as pd
import pytest

from tests.drivers.autoscaling import PLAIN, autoscaling, node_type
from tests.drivers.forked import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a node takes seconds to come, and more where others compute

TRAINING = '''
"""Ranks that wait a little; no torch, so that GPUs that only Ray's books know will do."""
import time


def train(config, context):
    for epoch in (1, 2):
        time.sleep(config["trainable"]["pause_s"])
        context.report({"epoch": epoch, "loss": 1.0})
    context.summarize({"samples_per_s": 1.0, "train_s": 1.0, "accuracy": 0.5})
'''

TRAINABLE = "_target_: pausing:train\nlr: 0.1\nreference_batch_size: 8\npause_s: 1.0\n"

SWEEP = """
# @package _global_
defaults:
  - override /trainable: pausing
sweep:
  name: pausing
  axes: {gpus: [1], device_batch_size: [8], lr_rule: [none], seed: [0, 1]}
trusted_modules: [pausing]
"""

GOES_S = 90.0
"""Within it a node that nothing is asked of is taken away; here after 6 s, and a busy core's delay."""


class Sweep:
    """A sweep in its own folder on an autoscaling cluster."""

    def __init__(self, folder, address):
        self.folder, self.address = folder, address
        for name, text in (
            ("pausing.py", TRAINING),
            ("my/trainable/pausing.yaml", TRAINABLE),
            ("my/sweep/pausing.yaml", SWEEP),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def start(self, *arguments):
        given = ("sweep=pausing", f"cluster.address={self.address}", f"hydra.searchpath=[file://{self.folder}/my]")
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *given, "report.html=false", *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{self.folder}"} | PLAIN,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=600)
        print(out, err)
        return process.returncode, out + err

    def trials(self):
        return pd.read_csv(self.folder / "results/pausing/tables/trials.csv")


class Look:
    """Ray's view of the cluster, read in another process: this one is not part of it."""

    PROGRAM = """
import json, sys
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

client, reply = GcsClient(sys.argv[1]), GetClusterStatusReply()
for _ in sys.stdin:
    reply.ParseFromString(client.get_cluster_status(timeout_s=20))
    state = reply.cluster_resource_state
    alive = [node.ray_node_type_name for node in state.node_states if node.total_resources and node.ray_node_type_name]
    asked = len(state.pending_gang_resource_requests)
    print(json.dumps({"alive": sorted(alive), "asked": asked}), flush=True)
"""

    def __init__(self, address):
        command = [sys.executable, "-c", self.PROGRAM, address]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, env=os.environ | PLAIN, text=True, **pipes)

    def now(self):
        assert self._process.stdin and self._process.stdout
        print(file=self._process.stdin, flush=True)
        nodes: dict[str, object] = json.loads(self._process.stdout.readline())
        return nodes

    def until(self, **wanted):
        """Wait until Ray reports this; return the seconds."""
        began = time.monotonic()
        while not wanted.items() <= (nodes := self.now()).items():
            assert time.monotonic() - began < GOES_S, nodes
            time.sleep(0.5)
        return time.monotonic() - began

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.communicate()


def test_nodes_come_for_trials_and_go_again(tmp_path):
    types = {"gpu": node_type(2, CPU=1, GPU=1), "cpu": node_type(4, CPU=4)}
    with autoscaling(tmp_path, **types) as address, Look(address) as look:
        sweep = Sweep(tmp_path, address)
        given = ("resources.device=cuda", "sweep.axes.gpus=[1,2,3]", "cluster.wait_s=120")
        status, told = sweep.run(*given)
        assert status == 0, told
        assert "no node" in told and "1 GPUs" in told
        trials = sweep.trials()
        assert trials.groupby("gpus").status.unique().map(list).to_dict() == {1: ["ok"], 2: ["ok"], 3: ["infeasible"]}
        (note,) = set(trials.note[trials.gpus == 3])  # the two that there can be at most were there
        assert note.startswith("needs 3 ranks")
        assert "cluster.wait_s=120" in note
        assert set(look.now()["alive"]) <= {"gpu"}  # type: ignore[call-overload]
        print(f"gone after {look.until(alive=[], asked=0):.0f} s")


@pytest.mark.parametrize("signalled", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_node_requests_end_with_their_driver(tmp_path, signalled):
    types = {"small": node_type(1, CPU=1), "large": node_type(0, CPU=4)}
    given = ("resources.device=cpu", "sweep.axes.gpus=[1,2]", "sweep.axes.seed=[0]", "cluster.wait_s=1200")
    with autoscaling(tmp_path, **types) as address, Look(address) as look:
        process = Sweep(tmp_path, address).start(*given)
        try:
            look.until(alive=["small"])
            look.until(alive=[], asked=1)  # the pair still waits for what cannot come, and nothing needs the node
            process.send_signal(signalled)
            process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == (130 if signalled is signal.SIGINT else -9)
        look.until(alive=[], asked=0)


def test_an_unavailable_node_type_is_infeasible(tmp_path):
    with autoscaling(tmp_path, cpus=1, small=node_type(2, CPU=2)) as address, Look(address) as look:
        sweep = Sweep(tmp_path, address)
        began = time.monotonic()
        status, told = sweep.run("resources.device=cuda", "cluster.wait_s=20")
        print(f"{time.monotonic() - began:.0f} s in all")
        assert status == 1, told  # no trial is ok
        trials = sweep.trials()
        assert set(trials.status) == {"infeasible"}
        (note,) = set(trials.note)
        assert f"there is room for 0 ({socket.gethostname()}: 1 CPU, 0 GPUs)" in note
        assert "cluster.wait_s=20" in note
        assert look.now() == {"alive": [], "asked": 0}
        status, told = sweep.run(
            "resources.device=cpu", "sweep.axes.gpus=[2]", "cluster.wait_s=120", "allow_changed=true"
        )
        assert status == 0, told
        assert "ok" in set(sweep.trials().status)
