"""Test the sbatch file on real Slurm daemons: it runs the sweep, and is requeued at its time limit."""

import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.drivers.command import orchestrate
from tests.drivers.forked import ROOT
from tests.drivers.slurm import Slurm, can_be_started

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_be_started(), reason="needs Slurm's daemons (Debian: slurmctld, slurmd), and root"),
]

SWEEP = (
    *("sweep=batch_scaling", "sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[128]", "sweep.axes.lr_rule=[none]"),
    *("sweep.axes.seed=[0]", "resources.device=cpu", "trainable.window_s=0.1", "report.html=false", "rerun_invalid=0"),
)
LAUNCH = ("mode=launch", "launch.target=slurm", "cluster.gpus_per_node=0", "launch.cpus_per_node=2")
ENDS = ("COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED")


@pytest.fixture
def slurm(tmp_path):
    cluster = Slurm(tmp_path / "slurm")
    try:
        yield cluster
    finally:
        cluster.end()


def submitted(slurm, folder, *more):
    """Print and submit the file as a user would."""
    setup = f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT}"
    told = (*LAUNCH, f"launch.options={{workdir: '{folder}'}}", f"launch.setup=['{setup}']")
    printed = orchestrate(folder, *SWEEP, *more, *told)
    assert printed.returncode == 0, printed.stderr
    return slurm.submit(printed.stdout)


def until(condition, within_s, what):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.5)


def test_the_sbatch_file_runs_the_sweep(slurm, tmp_path):
    number = submitted(slurm, tmp_path, "budget.epochs=2")

    def said():
        logs = [path.read_text() for path in tmp_path.glob("*.log")]
        return slurm.field(number, "JobState"), logs

    until(lambda: slurm.field(number, "JobState") in ENDS, 400, said)
    assert slurm.field(number, "JobState") == "COMPLETED", said()
    assert pd.read_csv(tmp_path / "results/batch_scaling/tables/trials.csv").status.tolist() == ["ok"]


def test_a_job_is_requeued_at_its_time_limit(slurm, tmp_path):
    number = submitted(slurm, tmp_path, "budget.epochs=100000")
    journal = tmp_path / "results/batch_scaling/journal.jsonl"

    def said():
        return [path.read_text() for path in tmp_path.glob("*.log")]

    until(lambda: journal.exists() and '"started"' in journal.read_text(), 400, said)
    slurm.tell("scancel", "--batch", "--signal=TERM", number)  # as --signal=B:TERM@120 does
    until(lambda: slurm.field(number, "Restarts") == "1", 120, said)
    assert slurm.field(number, "JobState") in ("PENDING", "COMPLETING", "RUNNING")
    assert '"finished"' not in journal.read_text() and "the same command continues" in "".join(said())
