import errno
from pathlib import Path

import pytest

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


def test_advice_names_the_file_the_room_that_is_left_and_the_way_on(tmp_path: Path) -> None:
    told = advice(OSError(errno.EROFS, "Read-only file system", str(tmp_path / "journal.jsonl")), tmp_path)
    assert told.startswith(
        f"stopped: {tmp_path}/journal.jsonl cannot be written (Read-only file system). {tmp_path} has "
    )
    assert "GB free: the file system takes no writes" in told and told.endswith("the same command continues.")
