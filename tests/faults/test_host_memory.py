"""Test a trial that exhausts the host's memory: the kernel or Ray ends it, as `oom`, after one more attempt."""

import json
import os
from pathlib import Path

import pandas as pd
import psutil
import pytest

from tests.drivers.command import orchestrate

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

TRAINING = '''
"""Takes 100 MB after the other, in a group of processes that may have less, if there is one."""
import os
import time


def train(config, context):
    with open(os.environ["EXECUTIONS"], "a") as file:
        file.write(f"{context.trial_id}\\n")
    if os.environ.get("MEMORY_GROUP"):
        with open(os.environ["MEMORY_GROUP"], "w") as group:
            group.write(str(os.getpid()))
    context.report({"epoch": 1, "loss": 1.0})
    held = []
    for _ in range(60):
        held.append(b"x" * 100_000_000)
        time.sleep(0.05)
    context.summarize({"samples_per_s": 1.0, "train_s": 1.0, "accuracy": 0.5})
'''
LIMIT = 1_500_000_000
"""Bytes; the rank has some 300 MB as it begins."""
RETRIES = 3
MORE = 2.5e9
"""Bytes by which Ray lets the use of memory grow."""


@pytest.fixture
def memory_group():
    """Return the file that lists the processes which share LIMIT."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    parent, limit = (old, "memory.limit_in_bytes") if (old / "memory.limit_in_bytes").exists() else (new, "memory.max")
    group = parent / f"orchestrator-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no group of processes can be made here: {error}")
    try:
        if not (group / limit).exists():
            pytest.skip(f"there is no {limit} here")
        (group / limit).write_text(str(LIMIT))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def check_hungry(folder, **environment):
    """Check the note of the trial's end."""
    (folder / "hungry_training.py").write_text(TRAINING)
    executions = folder / "executions.txt"
    ended = orchestrate(
        folder,
        *("sweep=batch_scaling", "trainable=function", "report.html=false", "trainable.lr=0.1"),
        *("trainable._target_=hungry_training:train", "trusted_modules=[hungry_training]"),
        *("sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[8]", "sweep.axes.lr_rule=[none]"),
        *("sweep.axes.seed=[0]", "cluster.dashboard=false", "resources.device=cpu", f"retries={RETRIES}"),
        timeout_s=300,
        EXECUTIONS=str(executions),
        **environment,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr  # out of memory is a result
    assert len(executions.read_text().split()) == 2
    results = folder / "results/batch_scaling"
    records = map(json.loads, (results / "journal.jsonl").read_text().splitlines())
    assert [record["value"]["cause"] for record in records if record["kind"] == "retried"] == ["host_memory"]
    (trial,) = pd.read_csv(results / "tables/trials.csv").to_dict("records")
    assert trial["status"] == "oom"
    print(trial["note"])
    return str(trial["note"])


def test_the_kernel_ends_a_hungry_trial(memory_group, tmp_path):
    assert "killed by the kernel" in check_hungry(tmp_path, MEMORY_GROUP=str(memory_group))


def test_ray_ends_a_hungry_trial(tmp_path):
    memory = psutil.virtual_memory()
    share = 1 - (memory.available - MORE) / memory.total
    settings = {"RAY_memory_usage_threshold": f"{share:.3f}", "RAY_memory_monitor_refresh_ms": "100"}
    assert "out of memory" in check_hungry(tmp_path, **settings)
