import subprocess
from pathlib import Path

import pytest

from orchestrator.run.provenance import commit, origin


def test_command_line_is_recorded() -> None:
    told = origin(["sweep=demo", "sweep.axes.gpus=[1,2]", "data.path=a b.npz"])["command"]
    assert told == "python -m orchestrator sweep=demo 'sweep.axes.gpus=[1,2]' 'data.path=a b.npz'"


def test_checkout_gives_commit_and_dirty_state(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        named = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.check_output(["git", "-C", str(tmp_path), *named, *arguments], text=True).strip()

    assert commit(tmp_path) == ""
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{git('rev-parse', 'HEAD')} with changes"


def test_outside_a_checkout_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    found = origin([])
    assert "commit" not in found and "orchestrator_commit" not in found
    assert found["command"] == "python -m orchestrator" and found["packages"]["torch"]
