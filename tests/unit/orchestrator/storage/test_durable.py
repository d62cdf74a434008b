import errno
import os
from pathlib import Path

import pytest

from orchestrator.storage.durable import write_durably


def test_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_durably(path, b"old, and longer")
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    path = tmp_path / "table.csv"
    write_durably(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, operation, fail)
    with pytest.raises(OSError, match="no space"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
