"""Facts about large files, which later commands know."""

import hashlib
import os
from pathlib import Path

import pytest

from trainables import file_facts
from trainables.file_facts import kept, sha256


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_facts, "LARGE", 4)
    (tmp_path / "large").write_bytes(b"tokens")
    return tmp_path / "large"


def test_fact_is_computed_once_until_the_file_changes(file):
    calls: list[Path] = []

    def size(path):
        calls.append(path)
        return len(path.read_bytes())

    assert [kept(file, "size", size) for _ in range(3)] == [6] * 3 and len(calls) == 1
    file.write_bytes(b"more tokens")
    assert kept(file, "size", size) == 11 and len(calls) == 2
    os.utime(file, ns=(1, 1))
    assert kept(file, "size", size) == 11 and len(calls) == 3
    assert kept(file, "another", size) == 11 and len(calls) == 4


def test_small_files_and_unusable_caches_are_read_again(file, monkeypatch):
    digest = hashlib.sha256(b"tokens").hexdigest()
    assert sha256(file) == digest
    for known in (file.parent / "cache").rglob("*.json"):
        known.write_text("{")
    assert sha256(file) == digest
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))  # no folder
    assert sha256(file) == digest
    monkeypatch.setattr(file_facts, "LARGE", 7)
    monkeypatch.setenv("XDG_CACHE_HOME", str(file.parent / "other"))
    assert sha256(file) == digest and not (file.parent / "other").exists()
