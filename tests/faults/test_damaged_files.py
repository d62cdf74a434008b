"""Test files truncated at any byte or with a flipped bit: mode=verify names them, and the rest stays intact."""

import random

import pytest

from tests.drivers.place import Place
from tests.faults.conftest import FOUR

ARGUMENTS = ("trainable.breaks=2",)  # so that there is a trace, too


def finished_place(folder):
    place = Place(folder, *FOUR)
    status, out, err = place.run(*ARGUMENTS)
    assert status == 1, err
    return place


def damages(content, chance):
    """Return the damages: truncated, a flipped bit, empty, and zeros, as some file systems leave after a power cut."""
    cut, flip = chance.randrange(1, len(content)), chance.randrange(len(content))
    flipped = content[:flip] + bytes([content[flip] ^ 1 << chance.randrange(8)]) + content[flip + 1 :]
    return [content[:cut], flipped, b"", content[:cut] + bytes(len(content) - cut)]


def check_files(place, names, rounds):
    chance = random.Random(7)
    for name in names:
        path = next(place.results.glob(name))
        whole = path.read_bytes()
        for _ in range(rounds):
            for damaged in damages(whole, chance)[: 4 if rounds > 1 else 2]:
                path.write_bytes(damaged)
                status, out, err = place.run("mode=verify", *ARGUMENTS)
                assert (status, path.name in err) == (1, True), (path, out, err)
                if path.parent.name == "tables":
                    assert place.run("mode=report", *ARGUMENTS)[0] == 1  # one seed breaks
                    assert path.read_bytes() == whole
                path.write_bytes(whole)
    status, out, err = place.run("mode=verify", *ARGUMENTS)
    assert (status, err) == (0, "")


pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]


def test_any_damaged_file_is_named(tmp_path):
    names = ["tables/*.csv", "tables/*.parquet", "tables/*.md", "trials/*/config.yaml", "trials/*/metrics.jsonl"]
    check_files(finished_place(tmp_path), [*names, "trials/*/trace.txt"], 3)


def test_a_damaged_journal_is_quarantined(tmp_path):
    place = finished_place(tmp_path)
    journal = place.results / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if b'"kind":"finished"' in line]
    lines[ends[0]] = lines[ends[0]].replace(b'"status":"', b'"status":"n', 1)
    journal.write_bytes(b"".join(lines))
    status, out, err = place.run("mode=verify", *ARGUMENTS)
    assert status == 1 and f"line {ends[0] + 1}: corrupt" in err
    begun = len(place.ran())
    status, out, err = place.run(*ARGUMENTS)
    assert status == 1 and f"line {ends[0] + 1}: corrupt" in out and "quarantine" in out
    assert len(place.ran()) == begun + 1  # only the trial with the damaged record runs again
    status, out, err = place.run("mode=verify", *ARGUMENTS)
    assert (status, err) == (0, "") and "quarantine" in out
