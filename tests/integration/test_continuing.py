"""Test that a sweep interrupted within a trial continues within it, with the same results."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [
    *(sys.executable, "-m", "orchestrator", "sweep=batch_scaling", "backend=inprocess", "budget.epochs=150"),
    *("sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[64]", "sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0]"),
    "rerun_invalid=0",  # on a busy machine it would run once more, from its beginning
]


def start(folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*COMMAND, f"results_dir={folder}"], cwd=folder.parent, env=environment, stdout=subprocess.DEVNULL
    )


def outcome(folder: Path) -> dict[str, object]:
    return pd.read_csv(folder / "batch_scaling/tables/trials.csv").iloc[0].to_dict()


@pytest.mark.slow
def test_an_interrupted_trial_continues(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert start(whole).wait(120) == 0
    process, rows = start(parts), lambda: [*parts.glob("batch_scaling/trials/*/metrics.jsonl")]
    while not rows() or rows()[0].read_text().count("\n") < 5:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    [trial] = parts.glob("batch_scaling/trials/*")
    assert [*(trial / "checkpoint").glob("*.pt")]

    assert start(parts).wait(120) == 0
    went_on, uninterrupted = outcome(parts), outcome(whole)
    assert "continued in epoch" in str(went_on["note"]) and not (trial / "checkpoint").exists()
    for column in ("loss", "val_accuracy", "accuracy", "samples", "steps", "epochs"):
        assert went_on[column] == uninterrupted[column]
    epochs = [json.loads(line)["epoch"] for line in (trial / "metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, 151))
