import contextlib
import os
import sys
from io import StringIO
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from orchestrator.cli.app import main
from orchestrator.config.hydra_private import saved_without_secrets

HANDLER = "{class: logging.FileHandler, filename: FOLDER/appended, formatter: simple}"
HOSTILE = {
    "job.env_set": "{job: {env_set: {ORCHESTRATOR_HOSTILE: 1}}}",
    "job.name": "{job: {name: ../FOLDER/appended}}",
    "job_logging": f"{{job_logging: {{handlers: {{file: {HANDLER}}}}}}}",
    "mode": "{mode: MULTIRUN, sweeper: {params: {+hydra.job.env_set.ORCHESTRATOR_HOSTILE: 1}}}",
    "sweeper.params": "{sweeper: {params: {trusted_modules: '[os]'}}}",
}
"""Further keys are refused in `test_config_files`."""
COMMANDS = {
    "run": ["backend=inprocess", "trainable=noop", "sweep.axes.gpus=[1]"],
    "multirun": ["-m", "backend=inprocess", "trainable=noop", "budget.epochs=1,2"],
    "job_number": ["-m", "trainable=noop", "budget.epochs=1,2", "results_dir=results/${hydra:job.num}"],
    "help": ["--help"],
    "cfg": ["--cfg", "job"],
}


def test_saved_configs_have_no_secrets_even_after_an_error(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "s3cr3t-value")
    config = OmegaConf.create({"token": "abcdefgh", "where": "${oc.env:HF_TOKEN}", "told": "not s3cr3t-value"})
    save, file = OmegaConf.save, StringIO()
    with contextlib.suppress(RuntimeError), saved_without_secrets():
        OmegaConf.save(config, file, resolve=True)
        raise RuntimeError("a sweep that ends so")
    assert "abcdefgh" not in file.getvalue() and "s3cr3t-value" not in file.getvalue()
    assert "${oc.env:HF_TOKEN}" in file.getvalue()
    assert OmegaConf.save is save


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_HOSTILE", raising=False)
    (tmp_path / "my" / "sweep").mkdir(parents=True)
    return tmp_path / "my"


def _refused(capsys, folder, told, *arguments):
    assert main(["-cd", str(folder), *arguments]) == 2
    assert told in capsys.readouterr().err
    assert "ORCHESTRATOR_HOSTILE" not in os.environ
    assert not (folder / "appended").exists() and not Path("results").exists()


@pytest.mark.parametrize(
    ("key", "command"),
    [
        *(("job_logging", command) for command in COMMANDS),
        *(("job.name", "run"), ("mode", "run"), ("sweeper.params", "multirun")),
    ],
)
def test_sweep_file_may_not_set_hydras_own_part(key, command, folder, capsys):
    hydra = HOSTILE[key].replace("FOLDER", str(folder))
    text = f"# @package _global_\ndefaults: [/sweep/batch_scaling@_global_]\nsweep: {{name: evil}}\nhydra: {hydra}\n"
    (folder / "sweep" / "evil.yaml").write_text(text)
    _refused(capsys, folder, f"hydra.{key}", "sweep=evil", *COMMANDS[command])


@pytest.mark.parametrize("command", ["multirun", "help"])
def test_primary_config_may_not_set_the_environment(command, folder, capsys):
    text = f"defaults: [config, _self_]\nhydra: {HOSTILE['job.env_set']}\n"
    (folder / "mine.yaml").write_text(text)
    _refused(capsys, folder, "hydra.job.env_set", "-cn", "mine", "sweep=batch_scaling", *COMMANDS[command])


@pytest.mark.parametrize("place", ["pkg://hostile", "${oc.env:PLACE}"])
def test_primary_config_may_not_name_a_module_as_search_path(place, folder, capsys, monkeypatch):
    monkeypatch.setenv("PLACE", "pkg://hostile")
    monkeypatch.syspath_prepend(folder)
    (folder / "hostile.py").write_text("")
    (folder / "mine.yaml").write_text(f"defaults: [config, _self_]\nhydra: {{searchpath: ['{place}']}}\n")
    _refused(capsys, folder, place, "-cn", "mine", "sweep=batch_scaling", *COMMANDS["run"])
    assert "hostile" not in sys.modules


def test_command_line_may_set_hydras_own_part(folder, capsys):
    (folder / "sweep" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [/sweep/batch_scaling@_global_]\nsweep: {name: mine}\n"
    )
    assert main(["-cd", str(folder), "sweep=mine", "hydra.job.name=other", "--cfg", "job"]) == 0
