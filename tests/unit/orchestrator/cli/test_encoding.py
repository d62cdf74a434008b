import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_locale_without_utf8_is_refused():
    odd = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "orchestrator", "sweep=batch_scaling", "mode=plan"]
    told = subprocess.run(command, env=os.environ | odd, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2 and told.stdout == "" and len(told.stderr.splitlines()) == 1
    assert "set PYTHONUTF8=1" in told.stderr


def test_unencodable_characters_are_replaced():
    code = "from orchestrator.cli.streams import outlast_readers; outlast_readers(); print('0.9 † ±')"
    odd = {"PYTHONIOENCODING": "latin-1"}
    told = subprocess.run([sys.executable, "-c", code], env=os.environ | odd, capture_output=True, timeout=60)
    assert told.returncode == 0 and told.stdout.decode("latin-1") == "0.9 ? ±\n"


@pytest.mark.parametrize("hiding", ["sweeps/__init__.py", "statistics.py", "typing.py", "yaml/__init__.py"])
def test_module_that_hides_ours_or_pythons_is_named(tmp_path, hiding):
    (tmp_path / hiding).parent.mkdir(exist_ok=True)
    (tmp_path / hiding).touch()
    (tmp_path / "test.py").touch()  # hides a module of Python's that nobody needs
    command = [sys.executable, "-m", "orchestrator", "sweep=batch_scaling", "mode=plan"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])}
    told = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith(str(tmp_path / hiding)) and len(told.stderr.splitlines()) == 1


def test_python_without_the_needed_packages_is_told_in_one_line():
    command = [sys._base_executable, "-S", "-m", "orchestrator", "mode=plan"]  # type: ignore[attr-defined]
    place = Path(__file__).parents[4]
    told = subprocess.run(command, env={}, cwd=place, capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stdout) == (2, "") and len(told.stderr.splitlines()) == 1
    assert "has no package" in told.stderr and "`uv run`" in told.stderr


def test_modules_named_as_those_of_pythons_own_start_are_no_error(tmp_path):
    for name in ("enum", "re", "token"):
        (tmp_path / f"{name}.py").touch()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])}
    code = "import orchestrator.__main__, sys; assert sys.path[0] == ''"
    told = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, timeout=60)
    assert told.returncode == 0, told.stderr
