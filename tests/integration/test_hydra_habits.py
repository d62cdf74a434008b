"""Test the uses of Hydra in docs/how-to/hydra.md."""

import json
from dataclasses import dataclass

import pytest
from hydra.core.config_store import ConfigStore

from orchestrator import run_sweep
from orchestrator.cli.app import main
from tests.drivers.command import orchestrate

PLAN = ("sweep=batch_scaling", "mode=plan", "format=json", "sweep.axes.gpus=[1]", "sweep.axes.seed=[0]")


@dataclass
class Structured:
    """A user's trainable config, checked by its types."""

    _target_: str = "structured_training:train"
    lr: float = 0.1
    reference_batch_size: int = 8
    optimizer: str = "sgd"
    depth: int = 3


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    training = "def train(config, context):\n    context.summarize({'samples_per_s': config['trainable']['depth']})\n"
    (tmp_path / "structured_training.py").write_text(training)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stored():
    ConfigStore.instance().store(group="trainable", name="structured", node=Structured)
    yield
    del ConfigStore.instance().repo["trainable"]["structured.yaml"]


def planned(capsys, *arguments):
    assert main([*PLAN, *arguments]) == 0
    return json.loads(capsys.readouterr().out)["trials"]


def test_a_structured_config_is_a_typed_choice(stored, capsys):
    trusted = "trusted_modules=[structured_training]"
    assert len(planned(capsys, "trainable=structured", "trainable.depth=5", trusted)) == 9
    assert main([*PLAN, "trainable=structured", "trainable.depth=deep", trusted]) == 2
    assert "Integer" in capsys.readouterr().err


def test_a_structured_config_is_a_section_from_python():
    small = {"backend": "inprocess", "sweep": {"name": "mine", "axes": {"gpus": [1], "device_batch_size": [8]}}}
    config = small | {"trainable": Structured(depth=7)}
    results = run_sweep(config, "trusted_modules=[structured_training]", "report.html=false", quiet=True)
    assert results.trials.samples_per_s.tolist() == [7.0]


def test_an_experiment_overlay_applies(folder, capsys):
    (folder / "conf/experiment").mkdir(parents=True)
    overlay = "# @package _global_\ndefaults:\n  - override /model: mlp\nbudget: {epochs: 2}\n"
    (folder / "conf/experiment/quick.yaml").write_text(overlay + "sweep: {axes: {device_batch_size: [8]}}\n")
    trials = planned(capsys, "-cd", "conf", "+experiment=quick")
    assert {trial["device_batch_size"] for trial in trials} == {8} and len(trials) == 3
    assert main([*PLAN[:2], "-cd", "conf", *PLAN[2:], "+experiment=quick"]) == 0  # flags among the overrides
    assert main([*PLAN, f"hydra.searchpath=[file://{folder}/conf]", "+experiment=quick"]) == 0


def test_info_names_the_source_of_the_config(folder):
    told = orchestrate(folder, "sweep=batch_scaling", "--info", "defaults")
    assert told.returncode == 0 and "batch_scaling" in told.stdout and "small_cnn" in told.stdout


@pytest.mark.parametrize(
    ("line", "offered"), [("sweep=batch_", "sweep=batch_scaling"), ("optimizer=ada", "optimizer=adamw")]
)
def test_shell_completion_works(folder, line, offered):
    told = orchestrate(folder, "-sc", "query=bash", COMP_LINE=f"sweep-orchestrator {line}")
    assert told.returncode == 0 and offered in told.stdout.split()
