"""Folders of the user's own configs: a primary config there, names that are shipped, folders that are not there."""

import json
from pathlib import Path

import pytest

from orchestrator import ConfigError, run_sweep
from orchestrator.cli.app import main

PRIMARY = """\
defaults:
  - config
  - override sweep: batch_scaling
  - _self_
sweep: {name: own, axes: {gpus: [1], device_batch_size: [8, 16], lr_rule: [none], seed: [0]}}
budget: {epochs: 3}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my/model").mkdir(parents=True)
    (tmp_path / "my/mine.yaml").write_text(PRIMARY)
    return tmp_path / "my"


def told(capsys, *arguments):
    assert main([*arguments, "mode=plan"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def _without_times(plan):
    """Return a plan's trials; their times are known for the shipped sweep only."""
    trials = json.loads(plan)["trials"]
    return [{key: value for key, value in trial.items() if not key.endswith("_s")} for trial in trials]


def test_own_primary_config_extends_the_shipped_one(own, capsys):
    assert main(["-cd", "my", "--config-name", "mine", "mode=plan", "format=json"]) == 0
    by_primary = _without_times(capsys.readouterr().out)
    axes = ("gpus=[1]", "device_batch_size=[8,16]", "lr_rule=[none]", "seed=[0]")
    overrides = ["sweep=batch_scaling", "sweep.name=own", "budget.epochs=3", *(f"sweep.axes.{axis}" for axis in axes)]
    assert main([*overrides, "mode=plan", "format=json"]) == 0
    assert _without_times(capsys.readouterr().out) == by_primary
    assert {trial["device_batch_size"] for trial in by_primary} == {8, 16}


def test_overrides_of_an_own_primary_config_are_checked(own, capsys):
    given = ("-cd", "my", "--config-name=mine")
    errors = told(capsys, *given, "budgt.epochs=3", "model=small_cn")
    assert "budget.epochs" in errors and "small_cnn" in errors
    assert told(capsys, "-cd", "my", "--config-name=other").startswith("--config-name=other: ")
    assert main(["-m", *given, "mode=plan", "sweep.axes.seed=[0],[1]"]) == 0
    assert capsys.readouterr().out.count("2 trials to run") == 2


def test_own_choice_with_a_shipped_name_is_refused_unless_identical(own, capsys):
    (own / "model/small_cnn.yaml").write_text("name: small_cnn\nwidth: 3\n")
    assert told(capsys, "-cd", "my", "sweep=batch_scaling").startswith("model=small_cnn: the shipped config")
    axis = "sweep.axes.model=[mlp,small_cnn]"
    assert "my/model/small_cnn.yaml" in told(capsys, "-cd", "my", "sweep=batch_scaling", "model=mlp", axis)
    assert main(["-cd", "my", "sweep=batch_scaling", "model=mlp", "mode=plan"]) == 0
    shipped = Path(__file__).parents[4] / "conf/model/small_cnn.yaml"
    (own / "model/small_cnn.yaml").write_text(shipped.read_text())
    assert main(["-cd", "my", "sweep=batch_scaling", "mode=plan"]) == 0


def test_missing_config_folder_is_an_error(own, capsys):
    (error,) = told(capsys, "-cd", "nope", "sweep=batch_scaling").splitlines()
    assert error.startswith("-cd nope: ")
    search = "hydra.searchpath=[file://my,file://nope]"
    assert "hydra.searchpath: nope: " in told(capsys, search, "sweep=batch_scaling")
    with pytest.raises(ConfigError, match="nope: "):
        run_sweep({"sweep": "batch_scaling"}, config_dir=own / "nope", quiet=True)


def test_config_path_is_refused_with_a_hint(own, capsys):
    assert "-cd my adds" in told(capsys, "-cp", "my", "sweep=batch_scaling")
