"""Several whole sweeps of one command."""

import pytest

from orchestrator import app
from orchestrator.app import main
from orchestrator.command_line import checking
from orchestrator.command_line.modes import MODES
from orchestrator.command_line.multirun import MANY, check_each
from orchestrator.composition.composition import Composition
from orchestrator.composition.search_path import initialised
from sweeps.mistakes import MistakesError


@pytest.mark.parametrize(
    ("sweeps", "said"), [(2, ""), (MANY + 1, f"checking {MANY + 1} sweeps before the first one starts\n")]
)
def test_who_waits_for_many_checks_is_told_so(sweeps, said, capsys):
    with initialised():
        check_each(["sweep=batch_scaling", "mode=plan", f"report.margin=range(1,{sweeps + 1})"])
    assert capsys.readouterr() == ("", said)


def test_what_does_not_compose_hides_no_other_mistake_of_any_sweep(capsys):
    assert main(["-m", "sweep=batch_scaling", "report.margin=0.1,x", "report.margn=1", "sweep.axes.lr_rule=[no]"]) == 2
    err = capsys.readouterr().err
    assert "margn" in err and "'no'" in err


@pytest.mark.parametrize("multirun", [[], ["-m"]])
def test_a_primary_config_that_is_not_there_is_one_mistake(multirun, tmp_path, monkeypatch, capsys):
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
    monkeypatch.setattr(checking, "Composition", Counted)
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
        with pytest.raises(
            MistakesError, match=r"with grad_accum_steps=2: its results would go where .* answer another"
        ):
            check_each([*asked, "grad_accum_steps=1,2"])
