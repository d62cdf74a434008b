"""Test that repeatedly killed training has the same metrics and tables as undisturbed training."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from tests.drivers.forked import ROOT

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

SEED = int(os.environ.get("ORCHESTRATOR_FAULT_SEED", "7"))
ARGUMENTS = (
    *("sweep=batch_scaling", "backend=inprocess", "budget.epochs=60", "report.html=false", "trainable.window_s=0.2"),
    *("sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[64,128]", "sweep.axes.lr_rule=[none,linear]"),
    *("sweep.axes.seed=[0,1]", "trainable.checkpoint_every_s=0.3"),
)
DEATHS = (*[signal.SIGKILL] * 4, signal.SIGTERM, signal.SIGINT)
IN_TRIALS = (
    *("trial_id", "cell_id", "status", "gpus", "device", "global_batch_size", "device_batch_size", "lr_rule", "lr"),
    *("seed", "loss", "accuracy", "val_accuracy", "samples", "steps", "epochs"),
)
IN_CELLS = (
    *("cell_id", "baseline_cell_id", "status", "n_seeds", "n_ok", "accuracy", "accuracy_lo", "accuracy_hi"),
    *("val_accuracy", "reference_cell_id", "accuracy_difference", "accuracy_difference_lo", "accuracy_difference_hi"),
    *("accuracy_verdict", "n_reached"),
)


def start(folder):
    command = [sys.executable, "-m", "orchestrator", *ARGUMENTS, f"results_dir={folder}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder.parent, env=environment, stdout=subprocess.DEVNULL)


def rows(folder):
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("batch_scaling/trials/*/metrics.jsonl"))


def curves(folder):
    """Return the rows of each trial without times."""
    curves = {}
    for path in folder.glob("batch_scaling/trials/*/metrics.jsonl"):
        lines = map(json.loads, path.read_text().splitlines())
        curves[path.parent.name] = [{k: v for k, v in line.items() if not k.endswith("_s")} for line in lines]
    return curves


def table(folder, name, columns):
    return pd.read_csv(folder / "batch_scaling/tables" / name)[list(columns)]


def test_killed_training_equals_undisturbed_training(tmp_path):
    chance, whole, parts = random.Random(SEED), tmp_path / "whole", tmp_path / "parts"
    assert start(whole).wait(300) == 0
    killed = 0
    for number in chance.sample(DEATHS, len(DEATHS)):
        process, before, more = start(parts), rows(parts), chance.randrange(1, 70)
        while process.poll() is None and rows(parts) < before + more:
            time.sleep(0.005)
        process.send_signal(number)
        killed += process.wait(60) != 0
    assert start(parts).wait(300) == 0
    for name, columns in (("trials.csv", IN_TRIALS), ("summary.csv", IN_CELLS)):
        pd.testing.assert_frame_equal(table(parts, name, columns), table(whole, name, columns), check_exact=True)
    assert curves(parts) == curves(whole)
    notes = pd.read_csv(parts / "batch_scaling/tables/trials.csv")["note"].astype(str)
    went_on = int(notes.str.contains("continued in epoch").sum())
    print(
        f"seed {SEED}: {killed} deaths, {went_on} of {len(notes)} trials went on within; metrics and tables identical"
    )
    assert went_on and not [*parts.glob("batch_scaling/trials/*/checkpoint")]
