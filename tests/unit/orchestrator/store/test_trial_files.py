import os
from contextlib import suppress
from types import SimpleNamespace

import pytest

from orchestrator.store import trial_files
from orchestrator.store.results_folder import CONFIG, KEPT
from orchestrator.store.secrets import NO_SECRETS
from orchestrator.store.trial_files import TrialFolders


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", [*trial_files.HASHED, KEPT, f".{KEPT}", "checkpoint"])
def test_a_further_attempt_waits_for_no_pipe(results_folder, name):
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
