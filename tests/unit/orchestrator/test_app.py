import os
from pathlib import Path

import pytest

from orchestrator.app import main


def test_a_folder_that_hydra_cannot_write_to_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    writable, asked = os.access, []

    def access(path, mode):
        asked.append(Path(path))
        return Path(path) != tmp_path and writable(path, mode)

    monkeypatch.setattr(os, "access", access)
    assert main(["sweep=batch_scaling", "trainable=noop"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"{tmp_path} cannot be written to") and "hydra.run.dir=FOLDER" in told
    assert asked[-1] == tmp_path and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_even_be_looked_for_is_told_in_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    too_long = "x" * 300
    assert main(["sweep=batch_scaling", "trainable=noop", "backend=inprocess", f"results_dir={too_long}"]) == 2
    assert capsys.readouterr().err == f"results_dir={too_long}/batch_scaling cannot be created: File name too long\n"


def test_mistakes_of_a_multirun_that_is_one_sweep_are_told_as_they_are(capsys):
    assert main(["-m", "sweep=batch_scaling", "trainable=noop", "retries=-1"]) == 2
    assert capsys.readouterr().err.startswith("retries must be")


@pytest.mark.parametrize("mode", ["plan", "report"])
def test_what_only_reads_needs_no_folder_of_hydras(tmp_path, monkeypatch, mode, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    main(["sweep=batch_scaling", "trainable=noop", f"mode={mode}"])
    assert "cannot be written to" not in capsys.readouterr().err


def test_the_versions_are_those_that_a_report_of_a_fault_needs(capsys):
    assert main(["--version"]) == 0
    told = capsys.readouterr().out
    assert all(f"{name} " in told for name in ("ray", "hydra-core", "torch", "Python")) and told.count("\n") == 1
