"""Tests of the Python API without running a sweep; tests/integration/test_library.py runs sweeps."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import load_results, run_sweep


def test_a_missing_table_is_reported_with_the_existing_ones(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(FileNotFoundError, match="speedup.md"):
        load_results(tmp_path).markdown("speedup")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/speedup.md").write_text("# Speed-up\n")
    assert load_results(tmp_path).markdown("speedup") == "# Speed-up\n"
    with pytest.raises(FileNotFoundError, match="speedups.md: .*speedup$"):
        load_results(tmp_path).markdown("speedups")


def test_a_list_of_overrides_is_refused() -> None:
    with pytest.raises(TypeError, match="mapping"):
        run_sweep(["sweep=batch_scaling"])  # type: ignore[arg-type]


def test_importing_the_package_imports_no_module() -> None:
    """Each import delays the moment from which the command line handles Ctrl-C."""
    told = "import sys, orchestrator; print([name for name in sys.modules if name.startswith('orchestrator.')])"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout == "[]\n"
    with pytest.raises(ImportError, match="cannot import name 'run_sweeps'"):
        from orchestrator import run_sweeps  # type: ignore[attr-defined]  # noqa: F401


def test_ctrl_c_ends_the_command_line_during_imports() -> None:
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
