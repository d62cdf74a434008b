"""A mode that reads results refuses what it would ignore."""

import shlex

import pytest

from orchestrator.cli import app
from orchestrator.cli.app import main
from orchestrator.cli.modes import MODES
from tests.unit.orchestrator.records import write_results


@pytest.fixture(autouse=True)
def no_reports(monkeypatch):
    """Let reports be begun, and not made."""
    monkeypatch.setattr(app, "MODES", {**MODES, "report": lambda sweep: 0})


GRID = ("sweep.axes.gpus=[1,2]", "sweep.axes.device_batch_size=[32]", "sweep.axes.lr_rule=[none]")


@pytest.mark.parametrize(
    "override",
    [
        *("sweep.exclude=[{gpus: 2}]", "sweep.axes.gpus=[1]", "'sweep.axes.seed=[0,1]'", "budget.epochs=77"),
        *("model=resnet18", "report.exclude={gpus: 2}", "only={gpus: 2}", "gpus=2", "rerun=all"),
    ],
)
def test_what_recorded_trials_cannot_show_is_refused_with_a_sweep_that_can(override, folder, capsys):
    write_results(folder / "results" / "kept", "sweep=batch_scaling", "results_dir=elsewhere", *GRID)
    for mode in ("report", "status"):
        assert main([f"mode={mode}", "results_dir=results/kept", override.strip("'")]) == 2
    report, status = capsys.readouterr().err.splitlines()
    is_of_grid = override not in ("budget.epochs=77", "model=resnet18", "rerun=all")
    assert ("load_results(" in status) == ("report.html" in report and len(report) < 200) == is_of_grid
    command = status.partition("another sweep: python -m orchestrator ")[2]
    assert is_of_grid or report.endswith(command)
    typed = shlex.split(command)
    assert {"sweep=batch_scaling", f"results_dir={folder}/results", "sweep.name=kept_2"} <= {*typed}
    assert main([*typed, "mode=plan"]) == 0


@pytest.mark.parametrize("first", ["results_dir=results/kept", "sweep=batch_scaling sweep.name=kept"])
@pytest.mark.parametrize("more", ["", "sweep.axes.gpus=[1,2]", "sweep.axes.gpus=[1, 2]", "model=small_cnn"])
def test_what_the_sweep_ran_with_may_be_repeated(first, more, folder):
    write_results(folder / "results" / "kept", "sweep=batch_scaling", *GRID)
    repeated = ["mode=report", "report.html=false", *first.split(), *filter(None, [more])]
    assert main(repeated) == 0
    assert main([*repeated, "sweep.exclude=[{gpus: 2}]"]) == 2


@pytest.mark.parametrize("mode", ["status", "list"])
def test_settings_of_a_report_are_refused_where_nothing_uses_them(mode, folder, capsys):
    write_results(folder / "results" / "kept", "sweep=batch_scaling", *GRID)
    assert main([f"mode={mode}", "report.margin=0.3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    _, write, command = line.partition(": write python -m orchestrator ")
    assert bool(write) == (mode == "status")
    assert not write or main([*shlex.split(command), "report.html=false"]) == 0


def test_the_name_of_results_has_the_short_line_of_a_mode_that_reads(folder, capsys):
    write_results(folder / "results" / "kept", "sweep=batch_scaling", *GRID)
    assert main(["sweep=kept", "mode=status"]) == 2
    line = capsys.readouterr().err.strip().partition("python -m orchestrator ")[2]
    assert line == "mode=status results_dir=results/kept" and main(line.split()) == 0
