"""Test several raylets on one machine as nodes: gangs across them, and a node that is lost during trials."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pandas as pd
import pytest

from tests.drivers.forked import ROOT
from tests.drivers.place import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # processes start slowly where others compute

TRAINING = '''
"""Ranks that sum over gloo until they are let go; each tells where and when it began."""
import os
import time

import ray
import torch

from trainables import process_group


def train(config, context):
    node = ray.get_runtime_context().get_node_id()
    with open(os.environ["EXECUTIONS"], "a") as file:
        file.write(f"{context.trial_id} {context.rank} {node} {time.time()}\\n")
    print(f"rank {context.rank} on node {node}")
    gang = process_group.join(context)
    total = torch.ones(1)
    for epoch in range(1, 10_000):
        total = gang.sum(torch.ones(1))
        go = gang.largest(float(os.path.exists(os.environ["RELEASE"])))[0]
        context.report({"epoch": epoch, "loss": 1.0})
        if go or context.should_stop():
            break
        time.sleep(0.1)
    context.summarize({"samples_per_s": 1.0, "train_s": 1.0, "accuracy": 0.5, "ranks_summed": total.item()})
'''

CONFIG = "_target_: waiting_training:train\nlr: 0.1\nreference_batch_size: 8\n"

SWEEP = """
# @package _global_
defaults:
  - override /trainable: waiting
sweep:
  name: waiting
  axes: {gpus: [2], device_batch_size: [8], lr_rule: [none], seed: [0, 1]}
trusted_modules: [waiting_training]
"""

SOON = {"RAY_health_check_period_ms": "1000"}
"""As the files of `mode=launch` set it: a lost node is noticed after five of these periods."""

BOUND_S = 60.0
"""From the loss of a node to the trial's next attempt elsewhere; 25 s were seen on two slow, busy cores."""


class Nodes:
    """A cluster of raylets, and the sweep that runs on it."""

    def __init__(self, folder, cluster):
        self.folder, self.cluster = folder, cluster
        self.drivers, self.others = [], []
        self.executions, self.release = folder / "executions.txt", folder / "release"
        for name, text in (
            ("waiting_training.py", TRAINING),
            ("my/trainable/waiting.yaml", CONFIG),
            ("my/sweep/waiting.yaml", SWEEP),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    @property
    def environment(self):
        """Return the environment of all processes: raylets without a token cannot talk to a driver with one."""
        told = {"EXECUTIONS": str(self.executions), "RELEASE": str(self.release)}
        # At the lower priority that Ray gives its workers, they would starve where others compute.
        return told | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"} | SOON

    def add(self, cpus):
        """Add a node, whose folder of shipped code is another than the head's, as on hosts; return it."""
        name = f"resources_of_node_{len(self.others)}"
        self.others.append(self.cluster.add_node(num_cpus=cpus, runtime_env_dir_name=name))
        return self.others[-1]

    def start(self, *arguments, host=None):
        """Start the sweep's driver, here or on its own host."""
        search = f"hydra.searchpath=[file://{self.folder}/my]"
        sweep = () if arguments and arguments[0].startswith("sweep=") else ("sweep=waiting",)
        given = (*sweep, f"cluster.address={self.cluster.address}", "resources.device=cpu", search)
        command = [sys.executable, "-m", "orchestrator", *given, "report.html=false", *arguments]
        driver = subprocess.Popen(
            host.command(*command) if host else command,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{self.folder}"} | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.drivers.append(driver)
        return driver

    def close(self):
        """End the processes that a failed test has left."""
        for driver in self.drivers:
            if driver.poll() is None:
                driver.kill()
                driver.communicate()

    def executed(self):
        """Return (trial, rank, node, time) of every execution so far."""
        lines = self.executions.read_text().splitlines() if self.executions.exists() else []
        return [(trial, int(rank), node, float(when)) for trial, rank, node, when in map(str.split, lines)]

    @property
    def results(self):
        return self.folder / "results" / "waiting"

    def journal(self, kind, sweep="waiting"):
        records = map(json.loads, (self.folder / "results" / sweep / "journal.jsonl").read_text().splitlines())
        return [record["value"] for record in records if record["kind"] == kind]

    def trials(self, sweep="waiting"):
        return pd.read_csv(self.folder / "results" / sweep / "tables/trials.csv")


@contextmanager
def cluster_of(folder, *cpus, **environment):
    """Start a head and further nodes, each with its number of CPUs, for sweeps in this folder."""
    nodes = Nodes(folder, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_raylet_start_wait_time_s", "120")  # a busy machine is slow
        for name, value in (nodes.environment | environment).items():
            patch.setenv(name, value)  # which the raylets hand to their workers
        from ray.cluster_utils import Cluster  # Ray reads some variables when it is imported

        nodes.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], "include_dashboard": False})
        try:
            for count in cpus[1:]:
                nodes.add(count)
            yield nodes
        finally:
            nodes.close()
            nodes.cluster.shutdown()


@pytest.fixture
def raylets(tmp_path, request):
    """Start a head and another node, each with this number of CPUs."""
    cpus = request.param if isinstance(request.param, tuple) else (request.param, request.param)
    with cluster_of(tmp_path, *cpus) as nodes:
        yield nodes


@pytest.mark.parametrize("raylets", [1], indirect=True)
def test_a_gang_spans_nodes_and_keeps_all_logs(raylets):
    raylets.release.touch()
    process = raylets.start("sweep.axes.seed=[0]")
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    (trial,) = raylets.trials().to_dict("records")
    assert (trial["status"], trial["ranks"], trial["ranks_summed"]) == ("ok", 2, 2.0)
    assert len({node for _, _, node, _ in raylets.executed()}) == 2
    folder = raylets.results / "trials" / trial["trial_id"]
    for _, rank, node, _ in raylets.executed():
        assert f"rank {rank} on node {node}" in (folder / f"rank{rank}.log").read_text()


@pytest.mark.parametrize("raylets", [2], indirect=True)
def test_a_trial_survives_a_lost_node(raylets):
    process = raylets.start()
    wait_for(lambda: len(raylets.executed()) == 4, process)  # two gangs of two, a node each
    lost = raylets.others[0].node_id
    (struck,) = {trial for trial, _, node, _ in raylets.executed() if node == lost}
    rows = raylets.results / "trials" / struck / "metrics.jsonl"
    wait_for(lambda: rows.exists() and rows.stat().st_size > 0, process)
    began, killed = time.monotonic(), time.time()
    raylets.cluster.remove_node(raylets.others[0], allow_graceful=False)
    wait_for(lambda: raylets.journal("retried"), process)  # else the trial could end before its node is missed
    raylets.release.touch()
    out, err = process.communicate(timeout=400)
    took_s = time.monotonic() - began
    assert process.returncode == 0, out + err
    assert raylets.trials().status.tolist() == ["ok", "ok"]
    (retried,) = raylets.journal("retried")
    assert (retried["trial_id"], retried["cause"]) == (struck, "node")
    attempts = [(trial, node, when) for trial, rank, node, when in raylets.executed() if rank == 0]
    assert len(attempts) == 3  # the trial that had its node runs once
    trial, node, when = attempts[-1]
    assert trial == struck and node != lost
    print(f"another attempt {when - killed:.1f} s after the loss, all done after {took_s:.1f} s")
    assert when - killed < BOUND_S


@pytest.mark.parametrize("raylets", [1], indirect=True)
def test_a_gang_continues_on_a_new_node(raylets):
    process = raylets.start("sweep.axes.seed=[0]", "cluster.wait_s=90")
    wait_for(lambda: len(raylets.executed()) == 2, process)
    raylets.cluster.remove_node(raylets.others[0], allow_graceful=False)
    wait_for(lambda: raylets.journal("retried"), process)
    new = raylets.add(1)
    wait_for(lambda: len(raylets.executed()) == 4, process)
    raylets.release.touch()
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    assert raylets.trials().status.tolist() == ["ok"]
    assert new.node_id in {node for _, _, node, _ in raylets.executed()[2:]}


@pytest.mark.parametrize("raylets", [(0, 2)], indirect=True)
def test_trials_wait_for_the_next_run_without_nodes(raylets):
    process = raylets.start("sweep.axes.seed=[0]")
    wait_for(lambda: len(raylets.executed()) == 2, process)
    raylets.cluster.remove_node(raylets.others[0], allow_graceful=False)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 1, out + err
    assert "no node left" in out
    assert "1 planned trial" in out
    assert not raylets.journal("finished") and [retry["cause"] for retry in raylets.journal("retried")] == ["node"]
