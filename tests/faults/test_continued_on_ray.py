"""Test that real training on Ray continues from its checkpoint after losing a rank, and after losing its driver."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest

from tests.drivers.forked import ROOT
from tests.drivers.place import wait_for
from tests.drivers.ray_head import free_port, ray_head

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

EPOCHS = 200
ARGUMENTS = (
    *("sweep=batch_scaling", f"budget.epochs={EPOCHS}", "report.html=false", "retries=1"),
    *("sweep.axes.gpus=[2]", "sweep.axes.device_batch_size=[64]", "sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0]"),
    *("trainable.window_s=0.2", "trainable.checkpoint_every_s=0.3", "resources.device=cpu"),
)


class Sweep:
    """One trial of two ranks, on a cluster of two logical CPUs."""

    def __init__(self, folder, port):
        self._folder, self._port = folder, port
        self.results = folder / "results/batch_scaling"

    def start(self):
        command = [sys.executable, "-m", "orchestrator", *ARGUMENTS, f"cluster.address=127.0.0.1:{self._port}"]
        pipe, variables = subprocess.PIPE, os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(command, cwd=self._folder, env=variables, stdout=pipe, stderr=pipe, text=True)

    def epochs(self):
        rows = [line for path in self.results.glob("trials/*/metrics.jsonl") for line in path.read_text().splitlines()]
        return [json.loads(row)["epoch"] for row in rows]

    def records(self, kind):
        lines = map(json.loads, (self.results / "journal.jsonl").read_text().splitlines())
        return [line["value"] for line in lines if line["kind"] == kind]

    def ranks(self):
        """Return the processes that write into the ranks' logs, rank by rank."""
        pid_by_log = {_output(pid): pid for pid in psutil.pids()}
        return [psutil.Process(pid_by_log[str(log)]) for log in sorted(self.results.glob("trials/*/rank*.log"))]

    def note(self):
        return str(pd.read_csv(self.results / "tables/trials.csv").note[0])


def _output(pid):
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:  # gone, or another user's
        return ""


@pytest.fixture
def port():
    """Return the cluster's port."""
    port = free_port()
    with ray_head(f"--port={port}", "--include-dashboard=false"):
        yield port


def test_a_gang_continues_from_its_checkpoint(port, tmp_path):
    sweep = Sweep(tmp_path, port)
    process = sweep.start()
    kept = sweep.results / "trials"
    wait_for(lambda: len([*kept.glob("*/checkpoint/*.pt")]) >= 2 and len(sweep.epochs()) > 20, process)
    _, struck = sweep.ranks()
    began = time.monotonic()
    struck.kill()
    wait_for(lambda: sweep.records("retried"), process)
    print(f"the gang ended {time.monotonic() - began:.1f} s after its rank")
    (retried,) = sweep.records("retried")
    assert retried["cause"] == "crash" and retried["note"].startswith("rank 1: the process died"), retried
    reached = len(sweep.epochs())
    wait_for(lambda: len(sweep.epochs()) > reached + 20, process)

    ranks, asked = sweep.ranks(), time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    took_s = time.monotonic() - asked
    print(f"exit {took_s:.1f} s after SIGTERM, in epoch {len(sweep.epochs())} of {EPOCHS}")
    assert process.returncode == 143 and took_s < 10.0
    assert not psutil.wait_procs(ranks, timeout=10)[1]
    assert [*kept.glob("*/checkpoint/*.pt")] and not sweep.records("finished")

    process = sweep.start()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert "continued in epoch" in sweep.note() and sweep.epochs() == list(range(1, EPOCHS + 1))
    assert len(sweep.records("started")) == 3 and len(sweep.records("finished")) == 1
    assert [*kept.glob("*/checkpoint/*.pt")] == []
    print(sweep.note())
