"""Several whole sweeps of one command."""

import pytest

from orchestrator.app import main
from orchestrator.command_line.multirun import Patience


@pytest.mark.parametrize(("a_sweep_s", "told"), [(0.001, ""), (0.5, "checking 100 sweeps before the first begins")])
def test_who_waits_for_many_checks_is_told_once_for_how_long(a_sweep_s, told, capsys):
    now = iter(a_sweep_s * tick for tick in range(200))
    patience = Patience(100, clock=lambda: next(now))
    for _ in range(100):
        patience.one_more()
    out, err = capsys.readouterr()
    assert (out, err.count("checking")) == ("", 1 if told else 0) and err.startswith(told)


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
