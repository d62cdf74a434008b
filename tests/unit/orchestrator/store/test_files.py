import enum
import errno
import json
import math
import os
import stat
from collections.abc import Mapping
from datetime import date
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.store import files
from orchestrator.store.files import advice, append, encode, is_at_fault, make_directory, write_durably, write_whole


def test_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / "table.csv"
    write_durably(path, b"old, and longer")
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_failed_write_leaves_only_the_old_file(tmp_path, monkeypatch, operation):
    path = tmp_path / "table.csv"
    write_durably(path, b"old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, operation, fail)
    with pytest.raises(OSError, match="no space"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def calls(monkeypatch):
    """The calls to the disk in order: `fsync` of a file, `directory` (fsync of a folder), `replace`."""
    told, fsync, replace = list[str](), os.fsync, os.replace

    def synced(file):
        told.append("directory" if stat.S_ISDIR(os.fstat(file).st_mode) else "fsync")
        fsync(file)

    def replaced(one, other):
        told.append("replace")
        replace(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return told


def test_content_is_synced_before_rename_and_directory(tmp_path, calls):
    write_durably(tmp_path / "table.csv", b"new")
    assert calls == ["fsync", "replace", "directory"]


def test_write_whole_does_not_sync(tmp_path, calls):
    write_whole(tmp_path / "table.csv", b"new")
    assert calls == ["replace"]


def test_new_directory_is_private_and_synced(tmp_path, calls):
    make_directory(tmp_path / "new")
    make_directory(tmp_path / "new")
    assert calls == ["directory"] and stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with pytest.raises(OSError, match="it is a link"):
        make_directory(tmp_path / "link")


@pytest.mark.parametrize("write", [write_durably, write_whole, append])
def test_files_are_private(tmp_path, write):
    write(tmp_path / "table.csv", b"new")
    assert stat.S_IMODE((tmp_path / "table.csv").stat().st_mode) == 0o600


@pytest.mark.parametrize("write", [write_durably, write_whole, append])
def test_partial_writes_are_completed(tmp_path, monkeypatch, write):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:3]))
    write(tmp_path / "table.csv", b"longer than three")
    assert (tmp_path / "table.csv").read_bytes() == b"longer than three"
    monkeypatch.setattr(os, "write", lambda file, data: 0)
    with pytest.raises(OSError, match="17 of 17 bytes not written"):
        write(tmp_path / "table.csv", b"longer than three")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def finite(value):
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@settings(max_examples=50)
@given(VALUES)
def test_encoded_values_are_one_line_and_decode_equal(value):
    line = encode(value)
    assert json.loads(line) == finite(value)
    assert line.isascii() and len(line.decode().splitlines()) == 1


class Place(enum.StrEnum):
    HERE = "here"


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"b": 1, "a": (2.5, True)}, b'{"b":1,"a":[2.5,true]}'),
        ([10**30, {1: "a number"}], b'[1000000000000000000000000000000,{"1":"a number"}]'),
        (["\ud800", "line\u2028end"], b'["\\ud800","line\\u2028end"]'),
        ([math.nan, math.inf, np.float64("nan"), np.float64(2)], b"[null,null,null,2.0]"),
        (Place.HERE, b'"here"'),
    ],
)
def test_values_have_their_json_form(value, line):
    assert encode(value) == line


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", date(2026, 11, 22), np.int64(3), object()])
def test_values_without_a_json_form_are_refused(value):
    with pytest.raises(TypeError):
        encode({"value": value})


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
def test_disk_errors_and_errors_in_the_results_are_recognised(code, place, at_fault, tmp_path):
    error = OSError(code, "refused", str(tmp_path / place)) if place else OSError(code, "refused")
    assert is_at_fault(error, tmp_path / "results") is at_fault


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "has 524.3 kB of 1.0 MB free"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permissions"),
        (errno.EFBIG, "ulimit -f"),
    ],
)
def test_advice_names_file_reason_and_remedy(code, remedy, tmp_path, monkeypatch):
    monkeypatch.setattr(files.shutil, "disk_usage", lambda place: SimpleNamespace(total=2**20, free=2**19))
    text = advice(OSError(code, "why", str(tmp_path / "journal.jsonl")), tmp_path)
    assert f"{tmp_path}/journal.jsonl " in text and "(why)" in text and remedy in text
    assert (f"{tmp_path} has" in text) is (code == errno.ENOSPC)


@pytest.mark.parametrize("free", [0, 3])
def test_a_disk_without_inodes_is_told(tmp_path, monkeypatch, free):
    full = SimpleNamespace(f_files=1000, f_favail=free, f_bavail=9, f_blocks=9, f_bfree=9, f_frsize=2**20)
    monkeypatch.setattr(files.os, "statvfs", lambda place: full)
    assert f"{free} inodes free for further files, of 1,000" in advice(OSError(errno.ENOSPC, "full", "x"), tmp_path)
