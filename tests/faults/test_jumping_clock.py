"""Test that durations do not change if the wall clock jumps by a day at every reading."""

import time

import pandas as pd
import pytest

from tests.drivers.command import orchestrate

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

JUMPS = """
import itertools
import time

real, jumps = time.time, itertools.cycle((0, 86_400, -86_400))
time.time = lambda: real() + next(jumps)
time.time_ns = lambda: int(time.time() * 1e9)
"""
DURATIONS = ("wall_s", "train_s", "epoch_s", "first_epoch_s", "window_s")


def test_durations_do_not_come_from_the_wall_clock(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(JUMPS)
    arguments = (
        *("sweep=batch_scaling", "backend=inprocess", "budget.epochs=3", "report.html=false", "trainable.window_s=0.2"),
        *("sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[64]", "sweep.axes.lr_rule=[none]"),
        *("sweep.axes.seed=[0,1]", "hang_s=100", "time_limit_s=200", "trainable.checkpoint_every_s=0"),
    )
    began = time.monotonic()
    ended = orchestrate(tmp_path, *arguments)
    took_s = time.monotonic() - began
    assert ended.returncode == 0, ended.stdout + ended.stderr
    trials = pd.read_csv(tmp_path / "results/batch_scaling/tables/trials.csv")
    assert trials.status.tolist() == ["ok", "ok"]
    for name in DURATIONS:
        assert ((trials[name] > 0) & (trials[name] < took_s)).all(), trials[name]
    samples = pd.read_parquet(next(tmp_path.glob("results/batch_scaling/trials/*/telemetry.parquet")))
    assert samples["time_s"].is_monotonic_increasing and samples["time_s"].max() < took_s
