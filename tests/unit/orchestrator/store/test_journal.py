import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.store.journal import Journal, JournalError, decode, encode, replay, split
from orchestrator.store.lock import LockedError
from orchestrator.store.record import Kind, Record
from orchestrator.store.secrets import Secrets
from sweeps.status import Status
from tests.unit.orchestrator.records import record_of

VALUES = [{"trial_id": f"t{number}", "attempt": 1, "label": "é|\n\t"} for number in range(4)]

NEXT = {"trial_id": "next", "attempt": 1}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


def fill(path):
    with Journal.open(path) as journal:
        for value in VALUES:
            journal.append(Kind.STARTED, value)
    return path.read_bytes()


def values(path):
    replayed = replay(path)
    assert not replayed.damages
    return [record.value for record in replayed.records]


def test_a_line_is_json_with_a_checksum_of_the_rest(path):
    line = fill(path).splitlines()[0]
    assert json.loads(line)["value"] == VALUES[0]
    assert line.startswith(b'{"checksum":"') and line[29:] == b'","kind":"started",' + line[48:]


def test_acknowledged_records_are_replayed(path):
    fill(path)
    assert values(path) == VALUES
    with Journal.open(path) as journal:
        assert not journal.damages


def test_records_hide_secrets_except_in_what_is_compared(path):
    with Journal.open(path, Secrets({"hunter22": "<hidden>"})) as journal:
        journal.append(Kind.ENDED, {"missing": 0, "note": "no hunter22"}, {"tables": {"secrets.txt": "0123abcd"}})
    assert values(path) == [{"missing": 0, "note": "no <hidden>", "tables": {"secrets.txt": "0123abcd"}}]


def test_history_follows_each_acknowledged_record(path):
    ends = [
        record_of(2, status=Status.INFEASIBLE, trial_id="a"),
        record_of(2, trial_id="b"),
        record_of(2, status=Status.DIVERGED, trial_id="a", attempt=2),
    ]
    with Journal.open(path) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": {}})
        for end in ends:
            journal.append(Kind.STARTED, {"trial_id": end.trial_id, "attempt": end.attempt})
            journal.append(Kind.FINISHED, end.to_json())
        assert journal.history.ends == {"a": ends[2], "b": ends[1]}
        assert [journal.history.of(trial_id).attempt for trial_id in "abc"] == [2, 1, 0]
    with Journal.open(path) as journal:
        assert journal.history.ends == {"a": ends[2], "b": ends[1]}


def test_numbers_that_are_not_finite_become_null(path):
    with Journal.open(path) as journal:
        journal.append(Kind.STARTED, NEXT | {"loss": [float("nan"), 1.0, {"worst": float("inf")}]})
    assert values(path) == [NEXT | {"loss": [None, 1.0, {"worst": None}]}]


def test_truncation_loses_only_the_torn_record(path):
    whole = fill(path)
    for length in range(len(whole)):
        lines, damages = split(whole[:length])
        intact = whole[:length].count(b"\n")
        assert len(lines) == intact and [damage.line for damage in damages] == [intact + 1] * _is_torn(whole, length)


def test_a_torn_record_is_cut_off_before_the_next_one(path):
    whole = fill(path)
    for length in range(0, len(whole), 29):
        path.write_bytes(whole[:length])
        with Journal.open(path) as journal:
            assert len(journal.damages) == _is_torn(whole, length)
            journal.append(Kind.STARTED, NEXT)
        assert values(path) == [*VALUES[: whole[:length].count(b"\n")], NEXT]


def _is_torn(whole, length):
    return length > 0 and whole[length - 1 : length] != b"\n"


def test_a_flipped_bit_costs_its_own_record_only(path):
    whole = fill(path)
    first, _, *others = whole.splitlines()
    start, end = len(first) + 1, whole.index(b"\n", len(first) + 1) + 1
    for offset in range(start, end):
        for bit in range(8):
            lines, damages = split(whole[:offset] + bytes([whole[offset] ^ 1 << bit]) + whole[offset + 1 :])
            assert lines == [first, *others]
            assert damages[0].line == 2
            assert sum(len(damage.data) for damage in damages) in (end - start, end - start - 1, end - start - 2)


@pytest.mark.parametrize("garbage", [b'{"checksum":"' * 80_000, b'{"checksum":"0123456789abcdef",' * 40_000])
def test_a_long_line_of_garbage_takes_linear_time(garbage):
    began_s = time.process_time()
    assert [len(damage.data) for damage in split(garbage + b"\n")[1]] == [len(garbage)]
    assert time.process_time() - began_s < 1


def test_damage_is_quarantined_and_reported_once(path, monkeypatch):
    monkeypatch.setattr("orchestrator.store.journal._MOST_KEPT", 10_000)
    lines = fill(path).splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\xff\x00garbage\n" + lines[2] + lines[3][:20])
    with Journal.open(path) as journal:
        damages = [(damage.line, damage.reason.partition(":")[0], len(damage.data)) for damage in journal.damages]
    assert damages == [(2, "corrupt", 9), (4, "torn", 20)]
    kept = [json.loads(line) for line in path.with_name("journal.jsonl.quarantine").read_text().splitlines()]
    assert [(damage["line"], damage["data"].encode("latin-1")) for damage in kept] == [
        (2, b"\xff\x00garbage"),
        (4, lines[3][:20]),
    ]
    with Journal.open(path) as journal:
        assert not journal.damages
    path.write_bytes(b"more\n" + path.read_bytes())
    with path.open("ab") as file:
        file.truncate(2**20)
    Journal.open(path).close()
    quarantine = path.with_name("journal.jsonl.quarantine")
    assert len(quarantine.read_text().splitlines()) == 4
    assert quarantine.stat().st_size < 2**17  # excerpts of what no record can be


def test_a_pipe_takes_no_damage(path):
    path.write_bytes(fill(path) + b"garbage\n")
    os.mkfifo(path.with_name("journal.jsonl.quarantine"))
    with pytest.raises(OSError, match="not a regular file"):
        Journal.open(path)


def short(limit):
    real = os.write
    return lambda file, data: real(file, data[:limit])


def full(limit):
    real = os.write

    def write(file, data):
        real(file, data[:limit])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return write


@pytest.mark.parametrize("fault", [short(0), short(17), full(0), full(17), full(10_000)])
def test_record_on_a_full_disk_is_not_acknowledged(path, monkeypatch, fault):
    before = fill(path)
    journal = Journal.open(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fault)
        with pytest.raises(JournalError, match="No space left") as caught:
            journal.append(Kind.STARTED, {"trial_id": "lost"})
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == before
    with pytest.raises(JournalError, match="accepts no more records"):
        journal.append(Kind.STARTED, {"trial_id": "late"})
    assert values(path) == VALUES
    journal.close()


@pytest.mark.parametrize("how", ["deleted", "moved", "folder moved", "replaced"])
def test_record_in_a_journal_that_is_gone_is_not_acknowledged(tmp_path, how):
    folder, elsewhere = tmp_path / "sweep", tmp_path / "elsewhere"
    folder.mkdir()
    path = folder / "journal.jsonl"
    before = fill(path)
    with Journal.open(path) as journal:
        if how == "deleted":
            path.unlink()
        else:
            (folder if how == "folder moved" else path).rename(elsewhere)
        if how == "replaced":
            path.write_bytes(before)
        with pytest.raises(JournalError, match="moved, deleted or replaced"):
            journal.append(Kind.STARTED, {"trial_id": "lost"})
        assert journal.history.of("lost").attempt == 0
    left = {"moved": elsewhere, "folder moved": elsewhere / path.name, "replaced": path}.get(how)
    assert path.exists() == (how == "replaced") and (left is None or left.read_bytes() == before)


@pytest.mark.parametrize("damage", [b"", b"garbage\n"])
def test_journal_is_locked_until_it_is_closed(path, damage):
    fill(path)
    path.write_bytes(damage + path.read_bytes())
    with Journal.open(path), pytest.raises(LockedError):
        Journal.open(path)
    Journal.open(path).close()


def test_journal_opens_while_a_reader_asks_who_writes(path):
    fill(path)
    with path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        threading.Timer(0.02, lambda: fcntl.flock(reader, fcntl.LOCK_UN)).start()
        Journal.open(path).close()
    Journal.open(path).close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "input/output error"), KeyboardInterrupt()])
def test_unsynced_record_is_not_acknowledged(path, monkeypatch, error):
    before = fill(path)

    def fail(_):
        raise error

    with Journal.open(path) as journal, monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises((JournalError, KeyboardInterrupt)):
            journal.append(Kind.STARTED, {"trial_id": "lost"})
    assert path.read_bytes() == before


def test_next_journal_cuts_off_a_remaining_torn_tail(path, monkeypatch):
    fill(path)

    def fail(*_):
        raise OSError(errno.EIO, "input/output error")

    with Journal.open(path) as journal, monkeypatch.context() as patched:
        patched.setattr(os, "write", full(17))
        patched.setattr(os, "ftruncate", fail)
        with pytest.raises(JournalError):
            journal.append(Kind.STARTED, {"trial_id": "lost"})
    with Journal.open(path) as journal:
        assert [damage.line for damage in journal.damages] == [5]
        journal.append(Kind.STARTED, NEXT)
    assert values(path) == [*VALUES, NEXT]


def test_closed_journal_accepts_no_record(path):
    journal = Journal.open(path)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.append(Kind.STARTED, {})


def test_value_without_a_json_form_changes_nothing(path):
    before = fill(path)
    with Journal.open(path) as journal:
        with pytest.raises(TypeError):
            journal.append(Kind.STARTED, {"trial_id": object()})
        assert path.read_bytes() == before
        journal.append(Kind.STARTED, NEXT)


def test_journal_that_is_a_link_is_refused(path, tmp_path):
    outside = tmp_path / "outside"
    outside.touch()
    path.symlink_to(outside)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        Journal.open(path)
    assert outside.read_bytes() == b""


WRITER = """
import sys
from pathlib import Path
from orchestrator.store.journal import Journal, replay
from orchestrator.store.record import Kind
with Journal.open(Path(sys.argv[1])) as journal:
    number = len(replay(Path(sys.argv[1])).records)
    while True:
        journal.append(Kind.STARTED, {"trial_id": str(number), "attempt": 1, "label": "x" * (number % 700)})
        print(number, flush=True)
        number += 1
"""


def test_kill_9_loses_no_acknowledged_record(path):
    moments = random.Random(0)
    acknowledged = -1
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout
        lines = [writer.stdout.readline() for _ in range(moments.randrange(1, 200))]
        writer.send_signal(signal.SIGKILL)
        lines += writer.communicate()[0].splitlines(keepends=True)
        acknowledged = max([acknowledged, *(int(line) for line in lines if line.endswith("\n"))])
        numbers = [int(record.value["trial_id"]) for record in replay(path).records]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > acknowledged >= 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text() | st.just("checksum"), JSON, max_size=3), max_size=5), st.data())
def test_any_values_are_replayed_and_any_garbage_is_damage(values, data):
    lines = [encode(Kind.SWEEP, value) + b"\n" for value in values]
    where = data.draw(st.integers(0, len(lines)))
    garbage = data.draw(st.binary(min_size=1).filter(lambda raw: raw != b"\n" * len(raw)))
    sound_lines, damages = split(b"".join([*lines[:where], garbage, b"\n", *lines[where:]]))
    assert [decode(line) for line in sound_lines] == [Record(kind=Kind.SWEEP, value=value) for value in values]
    assert damages


def test_empty_line_is_damage_but_loses_no_record(path):
    whole = fill(path)
    first, rest = whole.split(b"\n", 1)
    path.write_bytes(first + b"\n\n" + rest)
    with Journal.open(path) as journal:
        assert [damage.line for damage in journal.damages] == [2]
    assert path.read_bytes() == whole
