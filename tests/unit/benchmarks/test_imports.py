"""Check that every benchmark and study can be imported and explains itself with `--help`."""

import importlib
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = [
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for folder in ("benchmarks", "studies")
    for path in sorted((ROOT / folder).glob("*.py"))
]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("module", SCRIPTS)
def test_a_script_imports_and_helps(module, monkeypatch, capsys):
    text = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    if 'if __name__ == "__main__"' not in text:
        assert importlib.import_module(module).__doc__
        return
    assert "ArgumentParser(" in text  # else the whole script would run here
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0 and "usage:" in capsys.readouterr().out
