"""What a program is told that asks for what is not there; running sweeps from one is an integration test."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import load_results, run_sweep


def test_a_table_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(FileNotFoundError, match="no trial has ended yet"):
        load_results(tmp_path).markdown("speedup")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/speedup.md").write_text("# Speed-up\n")
    assert load_results(tmp_path).markdown("speedup") == "# Speed-up\n"
    with pytest.raises(FileNotFoundError, match="speedups.md: there are speedup$"):
        load_results(tmp_path).markdown("speedups")


def test_a_list_of_overrides_is_refused_and_not_passed_over() -> None:
    with pytest.raises(TypeError, match="config must be a mapping, or overrides"):
        run_sweep(["sweep=batch_scaling"])  # type: ignore[arg-type]


def test_importing_the_package_imports_nothing_of_it() -> None:
    """Until the command line hears Ctrl-C, each import is too many."""
    told = "import sys, orchestrator; print([name for name in sys.modules if name.startswith('orchestrator.')])"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout == "[]\n"
    with pytest.raises(ImportError, match="cannot import name 'run_sweeps'"):
        from orchestrator import run_sweeps  # type: ignore[attr-defined]  # noqa: F401


def test_the_command_line_hears_ctrl_c_while_it_imports() -> None:
    program = """
import builtins, signal
imports = builtins.__import__
def slow(name, *given, **named):
    if name == "orchestrator.cli.streams":
        signal.raise_signal(signal.SIGINT)
    return imports(name, *given, **named)
builtins.__import__ = slow
from orchestrator.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGINT, "")
