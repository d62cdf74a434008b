import json
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.store import trial_files
from orchestrator.store.results_folder import CONFIG, KEPT, ResultsFolder
from orchestrator.store.secrets import NO_SECRETS
from orchestrator.store.trial_files import TrialFolders


def test_a_new_attempt_starts_the_curve_anew(results_folder: ResultsFolder) -> None:
    path = results_folder.metrics("t1")
    trial_files.begin_curve(path)
    trial_files.extend(path, [{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": float("nan")}])
    trial_files.extend(path, [{"epoch": 3, "loss": 0.5}])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": None}, {"epoch": 3, "loss": 0.5}]
    trial_files.begin_curve(path)
    assert path.read_bytes() == b""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", [*trial_files.HASHED, KEPT, f".{KEPT}", "checkpoint"])
def test_a_further_attempt_waits_for_no_pipe(results_folder: ResultsFolder, name: str) -> None:
    folder = results_folder.trial("t1")
    folder.mkdir()
    (folder / CONFIG).write_text("a: 1")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with suppress(FileExistsError):  # the pipe is in the place of a folder
        trial_files.snapshot(folder)
        assert name == KEPT or (folder / KEPT / CONFIG).exists() == (name != CONFIG)
    TrialFolders(results_folder, NO_SECRETS).drop_checkpoint(SimpleNamespace(trial_id="t1"))  # type: ignore[arg-type]
    trial_files.drop(folder)


def test_invalid_and_torn_rows_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"epoch":1}\n[1]\nno JSON\n{"epoch":2}\n{"epoch":3')
    rows, damages = trial_files.read(path)
    assert rows == [{"epoch": 1}, {"epoch": 2}]
    told = ["line 2 is not a row (3 bytes)", "line 3 is not a row (7 bytes)", "torn: line 5 has no end (10 bytes)"]
    assert damages == told


def test_last_row_may_lack_its_line_end() -> None:
    assert trial_files.parsed(b'{"epoch":1}\n{"epoch":2}') == ([{"epoch": 1}, {"epoch": 2}], [])
    assert trial_files.parsed(b"") == ([], [])


def test_deep_row_is_damage() -> None:
    deep = b'{"epoch":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    rows, damages = trial_files.parsed(b'{"epoch":1}\n' + deep)
    assert rows == [{"epoch": 1}] and len(damages) == 1


def test_continued_attempt_removes_rows_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"epoch":1}\n{"loss":1}\n{"epoch":"2"}\n{"epoch":2}\n{"epoch":1.5}\n{"ep')
    trial_files.take_back(path, 2)
    assert path.read_bytes() == b'{"epoch":1}\n{"epoch":1.5}\n'
