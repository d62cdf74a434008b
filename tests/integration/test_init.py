"""Test that the projects of `mode=init` work unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.cli.app import main
from orchestrator.config.schema import SCHEMA

ROOT = Path(__file__).parents[2]
KINDS = SCHEMA["init.kind"].words


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind == "model" else ()) for kind in KINDS]
)
def test_a_new_project_can_be_planned(kind, folder, monkeypatch, capsys):
    assert main(["mode=init", "init.dir=mine", f"init.kind={kind}"]) == 0
    assert "-cd conf sweep=mine mode=plan" in capsys.readouterr().out
    assert (folder / "mine/README.md").exists() and (folder / "mine/.gitignore").exists()
    monkeypatch.chdir(folder / "mine")
    monkeypatch.syspath_prepend(folder / "mine")
    assert main(["-cd", "conf", "sweep=mine", "sweep.axes.gpus=[1,2]", "mode=plan", "format=json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["trials"]) == 8 and not list((folder / "mine").glob("results*"))


def test_a_write_error_is_reported_and_leaves_nothing(folder, monkeypatch, capsys):
    write, written = Path.write_text, []

    def full(self, *given, **named):
        written.append(self)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return write(self, *given, **named)

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["mode=init", "init.dir=mine"]) == 2
    told = capsys.readouterr().err
    assert "init.dir=mine" in told and "No space left" in told
    assert not (folder / "mine").exists()
    written.clear()
    (folder / "mine.txt").touch()
    assert main(["mode=init", "init.dir=."]) == 2
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["mine.txt"]
    capsys.readouterr()
    (folder / "file").touch()
    assert main(["mode=init", "init.dir=file/mine"]) == 2
    told = capsys.readouterr().err
    assert "init.dir=file/mine" in told and "Not a directory" in told


def test_existing_files_are_kept(folder, capsys):
    (folder / "train.py").write_text("precious")
    assert main(["mode=init", "init.dir=.", "init.kind=comand"]) == 2
    assert "'command'" in capsys.readouterr().err
    assert main(["mode=init"]) == 2
    assert "init.dir is not set" in capsys.readouterr().err
    assert [path.name for path in folder.rglob("*")] == ["train.py"]
    assert main(["mode=init", "init.dir=.", "init.kind=command"]) == 0
    assert "train.py exists and is kept" in capsys.readouterr().out
    assert (folder / "train.py").read_text() == "precious" and (folder / "conf/sweep/mine.yaml").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_passes_its_test_and_sweep(kind, folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def run(*arguments):
        ended = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=folder / "mine", env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr

    assert main(["mode=init", "init.dir=mine", f"init.kind={kind}"]) == 0
    run("pytest", "-q")
    run("orchestrator", "-cd", "conf", "sweep=mine", "backend=inprocess", "sweep.axes.gpus=[1]")
    summary = pd.read_csv(folder / "mine/results/mine/tables/summary.csv")
    assert len(summary) == 4 and (summary.status == "ok").all()
    assert summary[["samples_per_s", "accuracy"]].notna().all(axis=None)


def test_a_folder_may_be_named_by_a_number(folder, capsys):
    assert main(["mode=init", "init.dir=5"]) == 0
    assert (folder / "5" / "README.md").exists()
