"""What a user is told whose results cannot be written."""

import errno
import os
from pathlib import Path

import pytest

from orchestrator.storage.disk import advice


def told(code: int, folder: Path) -> str:
    return advice(OSError(code, os.strerror(code), str(folder / "journal.jsonl")), folder)


@pytest.mark.parametrize(
    ("code", "to_do"),
    [(errno.ENOSPC, "free some space there"), (errno.EROFS, "mount it for writing"), (errno.EACCES, "permissions of")],
)
def test_it_says_what_is_safe_and_what_to_do(tmp_path: Path, code: int, to_do: str) -> None:
    found = told(code, tmp_path)
    assert to_do in found and f"{tmp_path} has " in found and "What is in the journal is safe" in found


def test_nothing_is_promised_of_a_folder_that_is_gone(tmp_path: Path) -> None:
    found = told(errno.ENOENT, tmp_path / "gone")
    assert f"{tmp_path}/gone was moved or deleted" in found and "safe" not in found and "permissions" not in found
