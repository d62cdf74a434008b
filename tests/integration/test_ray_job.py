"""Test `ray job submit` to a local cluster: the command of docs/how-to/ray.md, with a user's training."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.drivers.ray_head import free_port, ray_head

ROOT = Path(__file__).parents[2]
TRAINING = """
def train(config, context):
    context.report({"epoch": 1, "loss": 1.0})
    context.summarize({"samples_per_s": 10.0 * context.batch.global_batch_size})
"""


@pytest.fixture
def token(tmp_path, monkeypatch):
    """Make a cluster that requires a token."""
    (tmp_path / "token").write_text("a" * 64)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))


@pytest.fixture
def head(token):
    """Start a cluster as users do; return the address of its dashboard."""
    dashboard, path = free_port(), f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = [f"--port={free_port()}", f"--dashboard-port={dashboard}"]
    # Jobs go through a node's agent, which does without its server where another cluster's has the usual port.
    options.append(f"--dashboard-agent-listen-port={free_port()}")
    with ray_head(*options, PYTHONPATH=str(ROOT), PATH=path):
        yield f"http://127.0.0.1:{dashboard}"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_submitted_sweep_runs(tmp_path, head):
    (tmp_path / "here").mkdir()
    (tmp_path / "here/submitted_training.py").write_text(TRAINING)
    sweep = ["sweep=batch_scaling", f"results_dir={tmp_path}/results", "sweep.axes.device_batch_size=[8]"]
    sweep += ["sweep.axes.gpus=[1,2]", "sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0]", "resources.device=cpu"]
    sweep += [
        "trainable=function",
        "trainable._target_=submitted_training:train",
        "trusted_modules=[submitted_training]",
    ]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", f"--address={head}", "--working-dir=."]
    ended = subprocess.run(
        [*ray, "--", "python", "-m", "orchestrator", *sweep, "report.html=false"],
        cwd=tmp_path / "here",
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"Job '\w+' succeeded", ended.stdout + ended.stderr)
    trials = pd.read_csv(tmp_path / "results/batch_scaling/tables/trials.csv").set_index("gpus")
    assert trials.status.to_dict() == {1: "ok", 2: "ok"} and trials.samples_per_s.to_dict() == {1: 80.0, 2: 160.0}
