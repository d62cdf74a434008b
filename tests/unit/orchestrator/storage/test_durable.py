import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.storage.durable import append, make_directory, write_durably, write_whole


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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the disk is told, in order: `fsync` of a file, of a `directory`, `replace`."""
    told, fsync, replace = list[str](), os.fsync, os.replace

    def synced(file: int) -> None:
        told.append("directory" if stat.S_ISDIR(os.fstat(file).st_mode) else "fsync")
        fsync(file)

    def replaced(one: Path, other: Path) -> None:
        told.append("replace")
        replace(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return told


def test_content_comes_before_its_name_and_both_before_the_return(tmp_path: Path, calls: list[str]) -> None:
    write_durably(tmp_path / "table.csv", b"new")
    assert calls == ["fsync", "replace", "directory"]


def test_what_can_be_made_again_waits_for_no_disk(tmp_path: Path, calls: list[str]) -> None:
    write_whole(tmp_path / "table.csv", b"new")
    assert calls == ["replace"]


def test_a_new_directory_is_its_owners_alone_and_lasts(tmp_path: Path, calls: list[str]) -> None:
    make_directory(tmp_path / "new")
    make_directory(tmp_path / "new")
    assert calls == ["directory"] and stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with pytest.raises(OSError, match="it is a link"):
        make_directory(tmp_path / "link")


@pytest.mark.parametrize("write", [write_durably, write_whole, append])
def test_files_are_their_owners_alone(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    write(tmp_path / "table.csv", b"new")
    assert stat.S_IMODE((tmp_path / "table.csv").stat().st_mode) == 0o600


@pytest.mark.parametrize("write", [write_durably, write_whole, append])
def test_a_system_that_takes_little_at_a_time_is_given_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:3]))
    write(tmp_path / "table.csv", b"longer than three")
    assert (tmp_path / "table.csv").read_bytes() == b"longer than three"
    monkeypatch.setattr(os, "write", lambda file, data: 0)
    with pytest.raises(OSError, match="17 of 17 bytes not written"):
        write(tmp_path / "table.csv", b"longer than three")
