"""Several whole sweeps of one command.

What a Hydra sweeper receives for a sweep.
"""

import os
from pathlib import Path

import pytest

from orchestrator.cli import app, checked_sweep
from orchestrator.cli.app import MANY, check_each, main, objective_of
from orchestrator.cli.modes import MODES
from orchestrator.config.compose import Composition
from orchestrator.config.search_path import initialised
from sweeps.errors import ConfigError


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


def test_errors_of_a_multirun_that_is_one_sweep_are_told_as_they_are(capsys):
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


@pytest.mark.parametrize(
    ("sweeps", "said"), [(2, ""), (MANY + 1, f"checking {MANY + 1} sweeps before the first one starts\n")]
)
def test_who_waits_for_many_checks_is_told_so(sweeps, said, capsys):
    with initialised():
        check_each(["sweep=batch_scaling", "mode=plan", f"report.margin=range(1,{sweeps + 1})"])
    assert capsys.readouterr() == ("", said)


def test_what_does_not_compose_hides_no_other_error_of_any_sweep(capsys):
    assert main(["-m", "sweep=batch_scaling", "report.margin=0.1,x", "report.margn=1", "sweep.axes.lr_rule=[no]"]) == 2
    err = capsys.readouterr().err
    assert "margn" in err and "'no'" in err


@pytest.mark.parametrize("multirun", [[], ["-m"]])
def test_a_primary_config_that_is_not_there_is_one_error(multirun, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*multirun, "--config-name=mine", "sweep=batch_scaling", "mode=plan"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith("--config-name=mine: there is no such primary config; ")


def test_a_sweep_is_composed_once_and_checked_once_more_at_its_turn(tmp_path, monkeypatch, capsys):
    composed, carried_out = [], []

    class Counted(Composition):
        def __init__(self, overrides, sections=None):
            composed.append(overrides)
            super().__init__(overrides, sections)

    def breaks_the_code(configured):
        carried_out.append(configured.request.criteria.margin)
        code.write_text("def train(config, context:")
        return 0

    code = tmp_path / "breakable_training.py"
    code.write_text("def train(config, context): pass")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(checked_sweep, "Composition", Counted)
    monkeypatch.setattr(app, "Composition", Counted)
    monkeypatch.setattr(app, "MODES", {**MODES, "plan": breaks_the_code})
    own = ("trainable._target_=breakable_training:train", "trusted_modules=[breakable_training]")
    assert main(["-m", "sweep=batch_scaling", "mode=plan", "report.margin=0.1,0.2", *own]) == 2
    assert (carried_out, len(composed)) == ([0.1], 2)
    assert "breakable_training.py, line 1: SyntaxError" in capsys.readouterr().err


def test_of_several_sweeps_the_worst_status_counts(tmp_path, monkeypatch):
    statuses = iter((0, 1, 0))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "MODES", {**MODES, "plan": lambda configured: next(statuses)})
    assert main(["-m", "sweep=batch_scaling", "mode=plan", "report.margin=0.1,0.2,0.3"]) == 1


@pytest.mark.parametrize("allowed", [False, True])
def test_sweeps_that_ask_otherwise_share_no_folder_unless_that_is_allowed(allowed):
    asked = ["sweep=batch_scaling", "trainable=noop", "backend=inprocess", f"allow_changed={allowed}".lower()]
    with initialised():
        if allowed:
            assert len(check_each([*asked, "grad_accum_steps=1,2"])) == 2
            return
        with pytest.raises(ConfigError, match=r"with grad_accum_steps=2: its results would go where .* answer another"):
            check_each([*asked, "grad_accum_steps=1,2"])


SUMMARY = """\
cell_id,status,val_accuracy,epoch_s
a,ok,0.9,30
b,ok,0.8,20
c,ok,,40
d,oom,0.99,1
"""


@pytest.fixture
def layout(layout):
    layout.table("summary.csv").write_text(SUMMARY)
    return layout


@pytest.mark.parametrize(
    ("column", "best", "value"), [("val_accuracy", "max", 0.9), ("val_accuracy", "min", 0.8), ("epoch_s", "min", 20.0)]
)
def test_it_is_the_best_figure_of_the_ok_cells(layout, column, best, value):
    assert objective_of(layout.root, {"column": column, "best": best}) == value


def test_a_sweep_without_the_figure_has_none(layout, tmp_path):
    assert objective_of(layout.root, {"column": None, "best": "max"}) is None
    assert objective_of(tmp_path / "elsewhere", {"column": "epoch_s", "best": "max"}) is None
    layout.table("summary.csv").write_text(SUMMARY.splitlines()[0] + "\nc,ok,,\nd,oom,0.99,1\n")
    assert objective_of(layout.root, {"column": "epoch_s", "best": "min"}) is None
    layout.table("summary.csv").write_text(SUMMARY.splitlines()[0] + "\n")
    assert objective_of(layout.root, {"column": "epoch_s", "best": "min"}) is None


def test_a_column_that_the_table_lacks_is_named_with_those_that_it_has(layout):
    with pytest.raises(KeyError, match=r"objective.column='acuracy' is not one of cell_id, status, val_accuracy"):
        objective_of(layout.root, {"column": "acuracy", "best": "max"})
