"""Several whole sweeps of one command.

What a Hydra sweeper receives for a sweep.
"""

import errno
import os
import re
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from orchestrator.cli import app
from orchestrator.cli.app import check_sweeps, is_multirun, main, objective_of
from orchestrator.cli.modes import MODES
from orchestrator.config.compose import initialised
from orchestrator.config.settings import SweeperObjectiveSection
from sweeps.errors import ConfigError


def test_unwritable_hydra_folder_is_an_error(folder, monkeypatch, capsys):
    writable, asked = os.access, []

    def access(path, mode):
        asked.append(Path(path))
        return Path(path) != folder and writable(path, mode)

    monkeypatch.setattr(os, "access", access)
    assert main(["sweep=batch_scaling", "trainable=noop", "mode=plan"]) == 2
    assert "results_dir=FOLDER" in capsys.readouterr().err
    assert main(["sweep=batch_scaling", "trainable=noop"]) == 2
    told = capsys.readouterr().err
    assert f"{folder} cannot be written to" in told and "hydra.run.dir=FOLDER" in told
    assert asked[-1] == folder and not list(folder.iterdir())


def test_too_long_results_dir_is_one_error(folder, capsys):
    too_long = "x" * 300
    assert main(["sweep=batch_scaling", "trainable=noop", "backend=inprocess", f"results_dir={too_long}"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("results_dir=") and os.strerror(errno.ENAMETOOLONG) in told


def test_multirun_of_one_sweep_reports_errors_without_prefix(capsys):
    assert main(["-m", "sweep=batch_scaling", "trainable=noop", "retries=-1"]) == 2
    assert capsys.readouterr().err.startswith("retries must be")


@pytest.mark.parametrize("mode", ["plan", "report"])
def test_reading_modes_need_no_hydra_folder(folder, monkeypatch, mode, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    main(["sweep=batch_scaling", "trainable=noop", f"mode={mode}"])
    assert "hydra.run.dir" not in capsys.readouterr().err


def test_version_lists_the_packages(capsys):
    assert main(["--version"]) == 0
    told = capsys.readouterr().out
    assert all(f"{name} " in told for name in ("ray", "hydra-core", "torch", "Python")) and told.count("\n") == 1


@pytest.mark.parametrize(("sweeps", "announced"), [(1, []), (2, ["2"])])
def test_many_checks_are_announced(sweeps, announced, capsys, monkeypatch):
    monkeypatch.setattr(app, "MANY", 1)
    with initialised():
        check_sweeps(["sweep=batch_scaling", "mode=plan", f"report.margin=range(1,{sweeps + 1})"])
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines()), re.findall(r"\d+", err)) == ("", len(announced), announced)


def test_multirun_reports_errors_of_all_sweeps(capsys):
    assert main(["-m", "sweep=batch_scaling", "report.margin=0.1,x", "report.margn=1", "sweep.axes.lr_rule=[no]"]) == 2
    err = capsys.readouterr().err
    assert "margn" in err and "'no'" in err


def test_missing_primary_config_is_one_error(folder, capsys):
    assert main(["-m", "--config-name=mine", "sweep=batch_scaling", "mode=plan"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith("--config-name=mine: ")


def test_each_sweep_of_a_multirun_is_checked_again_before_it_starts(folder, monkeypatch, capsys):
    carried_out = []

    def breaks_the_code(configured):
        carried_out.append(configured.request.settings.report.margin)
        code.write_text("def train(config, context:")
        return 0

    code = folder / "breakable_training.py"
    code.write_text("def train(config, context): pass")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(app, "MODES", {**MODES, "plan": breaks_the_code})
    own = ("trainable._target_=breakable_training:train", "trusted_modules=[breakable_training]")
    assert main(["-m", "sweep=batch_scaling", "mode=plan", "report.margin=0.1,0.2", *own]) == 2
    assert carried_out == [0.1]
    assert "breakable_training.py, line 1: SyntaxError" in capsys.readouterr().err


RUN = ("sweep=batch_scaling", "trainable=noop", "backend=inprocess")


@pytest.fixture
def compositions(tmp_path, monkeypatch):
    """The overrides of every composition; no sweep runs."""
    overrides_of_each = []
    load = ConfigLoaderImpl.load_configuration

    def counted(self, config_name, overrides, *rest, **options):
        overrides_of_each.append(list(overrides))
        return load(self, config_name, overrides, *rest, **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counted)
    monkeypatch.setattr(app, "MODES", {**MODES, "run": lambda configured: 0})
    return overrides_of_each


@pytest.mark.parametrize(
    ("arguments", "status", "count"),
    [
        (RUN, 0, 1),
        ((*RUN, "report.margn=1", "modle=mlp", "retries=-1"), 2, 3),  # that of a suggestion is tried
        (("--cfg", "job", *RUN, "modle=mlp"), 2, 4),
        (("--help",), 0, 1),
    ],
)
def test_config_is_composed_once(compositions, arguments, status, count):
    assert main(list(arguments)) == status
    assert len(compositions) == count


def test_the_job_gets_the_config_that_was_checked(folder, monkeypatch):
    configs = []
    monkeypatch.setattr(app, "MODES", {**MODES, "run": lambda configured: configs.append(configured.config) or 0})
    monkeypatch.setattr(app, "run_job", lambda config, task: configs.append(config) or task(config))
    assert main([*RUN, "report.margin=0.25"]) == 0
    composed, checked = configs
    assert composed.report.margin == checked["report"]["margin"] == 0.25 and "job" in composed.hydra


def test_multirun_returns_the_worst_status(folder, monkeypatch):
    statuses = iter((1, 0))
    monkeypatch.setattr(app, "MODES", {**MODES, "plan": lambda configured: next(statuses)})
    assert main(["-m", "sweep=batch_scaling", "mode=plan", "report.margin=0.1,0.2"]) == 1


@pytest.mark.parametrize("sweep", [[], ["sweep=batch_scaling"]])
@pytest.mark.parametrize("mode", ["list", "list,list"])
def test_modes_without_a_sweep_are_carried_out_in_a_multirun(mode, sweep, folder, capsys):
    assert main(["-m", *sweep, f"mode={mode}"]) == 0
    assert "sweep=batch_scaling" in capsys.readouterr().out


@pytest.mark.parametrize("allowed", [False, True])
def test_different_sweeps_may_not_share_a_folder_unless_allowed(allowed):
    asked = ["sweep=batch_scaling", "trainable=noop", "backend=inprocess", f"allow_changed={allowed}".lower()]
    with initialised():
        if allowed:
            check_sweeps([*asked, "grad_accum_steps=1,2"])
            return
        with pytest.raises(ConfigError, match=r"with grad_accum_steps=2: .*results_dir=results/"):
            check_sweeps([*asked, "grad_accum_steps=1,2"])


SUMMARY = """\
cell_id,status,val_accuracy,epoch_s
a,ok,0.9,30
b,ok,0.8,20
c,ok,,40
d,oom,0.99,1
"""


@pytest.fixture
def results_folder(results_folder):
    results_folder.table("summary.csv").write_text(SUMMARY)
    return results_folder


@pytest.mark.parametrize(
    ("column", "best", "value"), [("val_accuracy", "max", 0.9), ("val_accuracy", "min", 0.8), ("epoch_s", "min", 20.0)]
)
def test_objective_is_the_best_value_of_ok_cells(results_folder, column, best, value):
    assert objective_of(results_folder.root, SweeperObjectiveSection(column=column, best=best)) == value


def test_objective_is_none_without_values(results_folder, tmp_path):
    assert objective_of(results_folder.root, SweeperObjectiveSection(column=None, best="max")) is None
    assert objective_of(tmp_path / "elsewhere", SweeperObjectiveSection(column="epoch_s", best="max")) is None
    results_folder.table("summary.csv").write_text(SUMMARY.splitlines()[0] + "\nc,ok,,\nd,oom,0.99,1\n")
    assert objective_of(results_folder.root, SweeperObjectiveSection(column="epoch_s", best="min")) is None
    results_folder.table("summary.csv").write_text(SUMMARY.splitlines()[0] + "\n")
    assert objective_of(results_folder.root, SweeperObjectiveSection(column="epoch_s", best="min")) is None


def test_unknown_objective_column_lists_the_columns(results_folder):
    with pytest.raises(ConfigError, match=r"objective\.column='acuracy' .*cell_id, status, val_accuracy"):
        objective_of(results_folder.root, SweeperObjectiveSection(column="acuracy", best="max"))


@pytest.mark.parametrize(
    "arguments",
    [
        *(["sweep.zip=[[5]]"], ["sweep.zip=[[[gpus]]]"], ["sweep.exclude=[{5: 1}]"]),
        *(["report.metric={better: x}"], ["report.metric=5"]),
        *(
            ["trainable._target_=__main__:main", "trusted_modules=[__main__]"],
            ["hydra.sweeper.params={a: 5}"],
            ["hydra.verbose={a: 1}"],
        ),
        ["-m", "budget.epochs=range(0,1e12)"],
    ],
    ids=" ".join,
)
def test_a_wrong_request_is_told_in_one_line(arguments, capsys):
    assert main(["sweep=batch_scaling", "trainable=noop", "mode=plan", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("overrides", "is_asked"),
    [
        (["hydra.mode=MULTIRUN"], True),
        (["++hydra.mode=MULTIRUN"], True),
        (["+hydra.mode='MULTIRUN'", "a=1"], True),
        (["hydra.mode=MULTIRUN", "hydra.mode=RUN"], False),
        (["mode=MULTIRUN"], False),
        ([], False),
    ],
)
def test_multirun_is_asked_for_in_any_spelling(overrides, is_asked):
    assert is_multirun(overrides) is is_asked
