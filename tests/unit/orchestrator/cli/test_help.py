import pytest

from orchestrator.cli.app import main
from orchestrator.cli.modes import MODES, WITHOUT_SWEEP


def test_help_names_all_modes(capsys):
    assert main(["--help"]) == 0
    head, _, groups = capsys.readouterr().out.partition("== Configuration groups ==")
    assert "python -m orchestrator sweep=batch_scaling mode=plan" in head and "batch_scaling" in groups
    assert all(mode in head for mode in (*MODES, *WITHOUT_SWEEP))


@pytest.mark.parametrize("part", ["hydra_logging.version=7", "hydra_logging.handlers.console.class=none"])
def test_refused_logging_is_an_error_also_in_help(part, capsys):
    assert main(["--help", f"hydra.{part}"]) == 2
    assert capsys.readouterr().err.startswith("hydra.hydra_logging")
