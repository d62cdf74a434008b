"""Test the sweeps of the scripts in examples/."""

import json
import math
import shutil
from pathlib import Path

import pytest

from orchestrator import run_sweep
from orchestrator.cli.app import main

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(folder.name for folder in EXAMPLES.iterdir() if (folder / "conf").is_dir())


@pytest.fixture
def folder(request, tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES / request.param, tmp_path / "own")
    monkeypatch.chdir(tmp_path / "own")
    return tmp_path / "own"


def test_there_are_three_examples():
    assert len(NAMES) >= 3


@pytest.mark.parametrize("folder", NAMES, indirect=True)
def test_an_example_can_be_planned(folder, capsys):
    assert main(["-cd", "conf", "sweep=mine", "sweep.axes.gpus=[1,2]", "mode=plan", "format=json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["trials"]) == 8 and {trial["ranks"] for trial in plan["trials"]} == {1}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("folder", NAMES, indirect=True)
def test_an_example_ends_with_figures(folder):
    script = (folder / "train.py").read_text() if (folder / "train.py").is_file() else ""
    for framework in ("accelerate", "lightning"):
        if f"import {framework}" in script or f"from {framework}" in script:
            pytest.importorskip(framework)
    small = [
        "report.html=false",
        "sweep.axes.gpus=[1]",
        "sweep.axes.device_batch_size=[64]",
        "sweep.axes.lr_rule=[sqrt]",
    ]
    results = run_sweep({"sweep": "mine", "backend": "inprocess"}, *small, config_dir="conf")
    (trial,) = results.trials.to_dict("records")
    assert trial["status"] == "ok", trial["note"]
    assert trial["samples_per_s"] > 0 and trial["loss"] >= 0  # the digits are learnt by heart: it may print 0.0000
    chosen_by = "val_loss" if '"val_loss"' in script else "val_accuracy"
    assert math.isfinite(trial[chosen_by])  # else the fastest cell would be recommended, whatever it learns
    assert len(results.curves()) >= 3
