import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.storage import disk
from orchestrator.storage.disk import advice, is_at_fault


@pytest.mark.parametrize(
    ("code", "place", "at_fault"),
    [
        (errno.EACCES, "results/tables/summary.csv", True),
        (errno.EACCES, "elsewhere/data.npz", False),
        (errno.ENOSPC, "elsewhere/data.npz", True),
        (errno.ECONNREFUSED, None, False),
        (errno.EIO, None, True),
    ],
)
def test_the_disk_is_at_fault_for_its_own_errors_and_for_whatever_keeps_results_from_it(
    code: int, place: str | None, at_fault: bool, tmp_path: Path
) -> None:
    error = OSError(code, "refused", str(tmp_path / place)) if place else OSError(code, "refused")
    assert is_at_fault(error, tmp_path / "results") is at_fault


@pytest.mark.parametrize(
    ("code", "then"),
    [
        (errno.ENOSPC, "{} has 524.3 kB of 1.0 MB free: free some space there"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "look at the permissions"),
    ],
)
def test_advice_names_the_file_the_room_that_is_left_where_that_matters_and_the_way_on(
    code: int, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda place: SimpleNamespace(total=2**20, free=2**19))
    text = advice(OSError(code, "why", str(tmp_path / "journal.jsonl")), tmp_path)
    assert text.startswith(f"stopped: {tmp_path}/journal.jsonl cannot be written (why). {then.format(tmp_path)}")
    assert text.endswith("the same command continues.")
