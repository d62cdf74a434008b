import stat
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.store.results_folder import ResultsFolder


def test_directories_are_for_the_owner_only(tmp_path):
    folder = ResultsFolder(tmp_path / "results" / "mine")
    folder.create()
    folder.create()
    for directory in (folder.root, folder.trials, folder.tables):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_file_in_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(FileExistsError, match="mine"):
        ResultsFolder(tmp_path / "mine").create()


@pytest.mark.parametrize("trial_id", ["..", "a/b", "", "a\0b", "x" * 65, "/etc", "a\n", "."])
def test_trial_ids_that_leave_the_directory_are_refused(trial_id):
    with pytest.raises(ValueError, match="not a trial id"):
        ResultsFolder(Path("results")).metrics(trial_id)


def test_paths_of_result_files():
    folder = ResultsFolder(Path("r"))
    assert folder.metrics("a1") == Path("r/trials/a1/metrics.jsonl")
    assert folder.config("a1") == Path("r/trials/a1/config.yaml")
    assert folder.table("summary.csv") == Path("r/tables/summary.csv")
    assert folder.journal.name == "journal.jsonl"
    assert folder.trace("a1") == Path("r/trials/a1/trace.txt")


def test_store_imports_no_slow_package():
    code = (
        "import sys, orchestrator.store.results_folder, orchestrator.store.lock, orchestrator.store.trial_files;"
        "import orchestrator.store.journal;"
        "print([m for m in ('ray', 'torch', 'hydra', 'pandas', 'numpy', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
