import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.store.history import ends_under, sound_ends
from orchestrator.store.journal import (
    Journal,
    JournalError,
    Kind,
    Record,
    decode,
    effective_records,
    encode,
    repeated,
    replay,
    split,
    terminal,
)
from sweeps.status import Status
from tests.unit.orchestrator.records import record

VALUES = [{"trial_id": f"t{number}", "attempt": 1, "label": "é|\n\t"} for number in range(4)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def fill(path: Path) -> bytes:
    with Journal.open(path) as journal:
        for value in VALUES:
            journal.append(Kind.STARTED, value)
    return path.read_bytes()


def values(path: Path) -> list[Any]:
    found = replay(path)
    assert not found.damages
    return [record.value for record in found.records]


def test_a_line_is_json_with_a_checksum_of_the_rest(path: Path) -> None:
    line = fill(path).splitlines()[0]
    assert json.loads(line)["value"] == VALUES[0]
    assert line.startswith(b'{"checksum":"') and line[29:] == b'","kind":"started",' + line[48:]


def test_what_is_acknowledged_is_replayed(path: Path) -> None:
    fill(path)
    assert values(path) == VALUES
    with Journal.open(path) as journal:
        assert [record.value for record in journal.records] == VALUES
        assert not journal.damages


def test_the_last_end_of_a_trial_counts(path: Path) -> None:
    ends = [
        record(2, status=Status.INFEASIBLE, trial_id="a"),
        record(2, trial_id="b"),
        record(2, status=Status.DIVERGED, trial_id="a", attempt=2),
    ]
    with Journal.open(path) as journal:
        journal.append(Kind.SWEEP, {"config": {}})
        for each in ends:
            journal.append(Kind.STARTED, {"trial_id": each.trial_id, "attempt": each.attempt})
            journal.append(Kind.FINISHED, each.to_json())
        assert journal.terminal() == {"a": ends[2], "b": ends[1]}
        assert journal.attempts() == {"a": 2, "b": 1}
    with Journal.open(path) as journal:
        assert journal.terminal() == {"a": ends[2], "b": ends[1]}


def test_numbers_that_are_not_finite_are_null_at_once_and_later(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.append(Kind.STARTED, {"loss": [float("nan"), 1.0, {"worst": float("inf")}]})
        assert journal.records == replay(path).records
    assert values(path) == [{"loss": [None, 1.0, {"worst": None}]}]


def test_truncated_anywhere_only_the_torn_record_is_lost(path: Path) -> None:
    whole = fill(path)
    for length in range(len(whole)):
        lines, damages = split(whole[:length])
        intact = whole[:length].count(b"\n")
        assert len(lines) == intact and [damage.line for damage in damages] == [intact + 1] * _is_torn(whole, length)


def test_a_torn_record_is_cut_off_before_the_next_one(path: Path) -> None:
    whole = fill(path)
    for length in range(0, len(whole), 29):
        path.write_bytes(whole[:length])
        with Journal.open(path) as journal:
            assert len(journal.damages) == _is_torn(whole, length)
            journal.append(Kind.STARTED, {"trial_id": "next"})
        assert values(path) == [*VALUES[: whole[:length].count(b"\n")], {"trial_id": "next"}]


def _is_torn(whole: bytes, length: int) -> bool:
    return length > 0 and whole[length - 1 : length] != b"\n"


def test_a_flipped_bit_costs_its_own_record_only(path: Path) -> None:
    whole = fill(path)
    first, _, *others = whole.splitlines()
    start, end = len(first) + 1, whole.index(b"\n", len(first) + 1) + 1
    for offset in range(start, end):
        for bit in range(8):
            lines, damages = split(whole[:offset] + bytes([whole[offset] ^ 1 << bit]) + whole[offset + 1 :])
            assert lines == [first, *others]
            assert damages[0].line == 2
            assert sum(len(damage.data) for damage in damages) in (end - start, end - start - 1, end - start - 2)


def test_damage_is_kept_beside_and_named_once(path: Path) -> None:
    lines = fill(path).splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\xff\x00garbage\n" + lines[2] + lines[3][:20])
    with Journal.open(path) as journal:
        assert [str(damage) for damage in journal.damages] == [
            "line 2: corrupt: the checksum does not match (9 bytes)",
            "line 4: torn: the line has no end (20 bytes)",
        ]
    kept = [json.loads(line) for line in path.with_name("journal.jsonl.quarantine").read_text().splitlines()]
    assert [(each["line"], each["data"].encode("latin-1")) for each in kept] == [
        (2, b"\xff\x00garbage"),
        (4, lines[3][:20]),
    ]
    with Journal.open(path) as journal:
        assert not journal.damages
    path.write_bytes(b"more\n" + path.read_bytes())
    Journal.open(path).close()
    assert len(path.with_name("journal.jsonl.quarantine").read_text().splitlines()) == 3


def short(limit: int) -> Callable[[int, bytes], int]:
    real = os.write
    return lambda file, data: real(file, data[:limit])


def full(limit: int) -> Callable[[int, bytes], int]:
    real = os.write

    def write(file: int, data: bytes) -> int:
        real(file, data[:limit])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return write


@pytest.mark.parametrize("fault", [short(0), short(17), full(0), full(17), full(10_000)])
def test_a_full_disk_is_no_acknowledgement(
    path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[int, bytes], int]
) -> None:
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
    assert [record.value for record in journal.records] == VALUES
    journal.close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "input/output error"), KeyboardInterrupt()])
def test_what_was_not_synced_is_not_acknowledged(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    before = fill(path)

    def fail(_: int) -> None:
        raise error

    with Journal.open(path) as journal, monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises((JournalError, KeyboardInterrupt)):
            journal.append(Kind.STARTED, {"trial_id": "lost"})
    assert path.read_bytes() == before


def test_a_tail_that_could_not_be_cut_off_is_cut_off_by_the_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    with Journal.open(path) as journal, monkeypatch.context() as patched:
        patched.setattr(os, "write", full(17))
        patched.setattr(os, "ftruncate", fail)
        with pytest.raises(JournalError):
            journal.append(Kind.STARTED, {"trial_id": "lost"})
    with Journal.open(path) as journal:
        assert [damage.line for damage in journal.damages] == [5]
        journal.append(Kind.STARTED, {"trial_id": "next"})
    assert values(path) == [*VALUES, {"trial_id": "next"}]


def test_a_closed_journal_takes_nothing(path: Path) -> None:
    journal = Journal.open(path)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.append(Kind.STARTED, {})


def test_a_value_that_is_no_json_changes_nothing(path: Path) -> None:
    before = fill(path)
    with Journal.open(path) as journal:
        with pytest.raises(TypeError):
            journal.append(Kind.STARTED, {"trial_id": object()})
        assert path.read_bytes() == before
        journal.append(Kind.STARTED, {"trial_id": "next"})


def test_a_link_to_somewhere_else_is_not_written_through(path: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    path.symlink_to(outside)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        Journal.open(path)
    assert outside.read_bytes() == b""


WRITER = """
import sys
from pathlib import Path
from orchestrator.store.journal import Journal
from orchestrator.store.journal import Kind
with Journal.open(Path(sys.argv[1])) as journal:
    number = len(journal.records)
    while True:
        journal.append(Kind.STARTED, {"number": number, "padding": "x" * (number % 700)})
        print(number, flush=True)
        number += 1
"""


def test_kill_9_loses_no_acknowledged_record(path: Path) -> None:
    moments = random.Random(0)
    acknowledged = -1
    for _ in range(8):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout
        for _ in range(moments.randrange(1, 200)):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        lines = writer.communicate()[0].splitlines(keepends=True)
        acknowledged = max([acknowledged, *(int(line) for line in lines if line.endswith("\n"))])
        numbers = [record.value["number"] for record in replay(path).records]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > acknowledged


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text() | st.just("checksum"), JSON, max_size=3), max_size=5), st.data())
def test_any_values_come_back_and_any_garbage_stays_out(values: list[dict[str, Any]], data: st.DataObject) -> None:
    lines = [encode(Kind.SWEEP, value) + b"\n" for value in values]
    where = data.draw(st.integers(0, len(lines)))
    garbage = data.draw(st.binary(min_size=1).filter(lambda raw: raw != b"\n" * len(raw)))
    found, damages = split(b"".join([*lines[:where], garbage, b"\n", *lines[where:]]))
    assert [decode(line) for line in found] == [Record(kind=Kind.SWEEP, value=value) for value in values]
    assert damages


def test_an_empty_line_is_damage_and_takes_no_record_with_it(path: Path) -> None:
    whole = fill(path)
    first, rest = whole.split(b"\n", 1)
    path.write_bytes(first + b"\n\n" + rest)
    with Journal.open(path) as journal:
        assert [damage.line for damage in journal.damages] == [2]
    assert path.read_bytes() == whole


ASKED = {"config": {"epochs": 1}}
SWEEP = Record(kind=Kind.SWEEP, value={"fingerprint": ASKED})
DISTURBED = Record(kind=Kind.DISTURBED, value={"trial_ids": ["1-32-none-0"]})


def end(record_of, status, attempt=1, **fields):
    record = record_of(status=status, attempt=attempt, trial_id="1-32-none-0", **fields)
    return Record(kind=Kind.FINISHED, value=asdict(record) | {"status": status.value})


def read(records):
    """The end of the one trial, by all who ask for it."""
    (first,), (second,), (third,) = (
        terminal(records).values(),
        ends_under(records, ASKED).values(),
        sound_ends(records, ASKED)[0].values(),
    )
    assert first == second == third
    return first


def test_in_early_journals_a_further_attempt_at_a_disturbed_trial_replaces_its_row_if_it_is_ok(record_of):
    again = end(record_of, Status.OK, 2, metrics={"samples_per_s": 2.0})
    found = read([SWEEP, end(record_of, Status.OK, metrics={"samples_per_s": 1.0}), DISTURBED, again])
    assert (found.attempt, found.metrics) == (2, {"samples_per_s": 2.0})


def test_else_the_ok_row_is_kept_and_says_so(record_of):
    for status in (Status.FAILED, Status.OOM, Status.TIMEOUT, Status.SKIPPED, Status.INFEASIBLE, Status.DIVERGED):
        ok = end(record_of, Status.OK, metrics={"samples_per_s": 1.0}, note="two cores busy")
        found = read([SWEEP, ok, DISTURBED, end(record_of, status, 2, note="why")])
        assert (found.status, found.attempt, found.metrics) == (Status.OK, 1, {"samples_per_s": 1.0})
        assert found.note == f"two cores busy; a repetition ended as {status.value}: why"


def test_a_disturbed_trial_that_a_budget_kept_from_running_once_more_is_not_said_to_have_run(record_of):
    found = read([SWEEP, end(record_of, Status.OK), DISTURBED, end(record_of, Status.SKIPPED, wall_s=0.0, note="why")])
    assert (found.status, found.note) == (Status.OK, "not repeated: skipped: why")


def test_whoever_asks_for_a_rerun_gets_its_end(record_of):
    ok, failed = end(record_of, Status.OK), end(record_of, Status.FAILED, 2)
    assert read([SWEEP, ok, SWEEP, failed]).status is Status.FAILED
    assert read([SWEEP, ok, DISTURBED, SWEEP, failed]).status is Status.FAILED, "the driver died before the rerun"
    assert read([SWEEP, ok, DISTURBED, failed, SWEEP, end(record_of, Status.FAILED, 3)]).attempt == 3


def test_a_trial_that_was_not_ok_gains_nothing(record_of):
    assert (
        read([SWEEP, end(record_of, Status.OOM), DISTURBED, end(record_of, Status.FAILED, 2)]).status is Status.FAILED
    )


def test_what_has_no_sense_passes_through():
    odd = [Record(kind=Kind.FINISHED, value=3), Record(kind=Kind.DISTURBED, value={"trial_ids": 3}), DISTURBED]
    assert list(effective_records(odd)) == odd


def test_a_result_stays_one_where_the_trial_was_asked_for_again_and_left_out(record_of):
    oom = end(record_of, Status.OOM, note="too large")
    for left_out in (Status.SKIPPED, Status.INFEASIBLE):
        again = end(record_of, left_out, wall_s=0.0, note="why")
        found = read([SWEEP, oom, SWEEP, again, SWEEP, end(record_of, left_out, wall_s=0.0)])
        assert (found.status, found.attempt) == (Status.OOM, 1)
        assert found.note == f"too large; not run again, although requested: {left_out.value}"
        assert read([SWEEP, oom, SWEEP, again]).note.endswith(f"{left_out.value}: why")
        assert read([SWEEP, end(record_of, Status.FAILED), SWEEP, again]).status is left_out


def test_one_that_was_ended_early_when_asked_for_again_ended_so(record_of):
    assert read([SWEEP, end(record_of, Status.OK), SWEEP, end(record_of, Status.SKIPPED, 2)]).status is Status.SKIPPED


FIRST = {"samples_per_s": 1.0, "foreign_cpu": 0.4, "foreign_cpu_by": "tar", "step_s": 3.0, "accuracy": 0.9, "steps": 7}
SECOND = {"samples_per_s": 2.0, "foreign_cpu": 0.0, "step_s": 1.0, "accuracy": 0.1, "train_s": 5.0}
MERGED = {"samples_per_s": 2.0, "foreign_cpu": 0.0, "step_s": 1.0, "accuracy": 0.9, "steps": 7}


def timed(status=Status.OK, **fields):
    value = {"trial_id": "other", "times": "1-32-none-0", "status": status.value, "note": "", "disturbed": ""}
    value |= {"repeats": "window"}
    more = {"timing": "exclusive", "metrics": SECOND, "provenance": {"host": "b"}, "gpus": 1, "wall_s": 4.0}
    return Record(kind=Kind.TIMED, value=value | more | fields)


def test_a_repetition_that_only_times_gives_its_row_that_timing_and_nothing_else(record_of):
    ok = end(record_of, Status.OK, metrics=FIRST, note="a remark", wall_s=100.0, provenance={"host": "a"})
    found = read([SWEEP, ok, timed()])
    assert found.metrics == MERGED and (found.timing, found.provenance) == ("exclusive", {"host": "b"})
    assert (found.attempt, found.wall_s, found.note) == (1, 100.0, "a remark; timed again, alone")
    assert read([SWEEP, ok, SWEEP, timed(), SWEEP]) == found, "whichever driver took it"
    assert read([SWEEP, ok, timed(repeats="whole")]).metrics == MERGED | {"train_s": 5.0}


def test_the_row_says_which_times_are_still_of_the_disturbed_training(record_of):
    ok = end(record_of, Status.OK, metrics=FIRST | {"train_s": 9.0, "first_epoch_s": 3.0})
    assert read([SWEEP, ok, timed()]).note == "timed again, alone, except first_epoch_s, train_s"
    assert read([SWEEP, ok, timed(repeats="whole")]).note == "timed again, alone"


def test_one_that_failed_or_was_disturbed_leaves_the_row_as_it_was_and_is_told(record_of):
    ok = end(record_of, Status.OK, metrics=FIRST)
    disturbed, failed = timed(disturbed="others took 12%"), timed(Status.FAILED, note="no port")
    found = read([SWEEP, ok, disturbed])
    assert (found.metrics, found.timing) == (FIRST, "device")
    assert found.note == "timed again, in vain: others took 12%"
    assert read([SWEEP, ok, failed]).note == "a repetition of its timing ended as failed: no port"
    assert read([SWEEP, ok, failed, timed()]).note == "timed again, alone", "it was lost with its node"


def test_a_rerun_with_a_disturbed_timing_keeps_the_earlier_one(record_of):
    before = end(record_of, Status.OK, metrics=SECOND, provenance={"host": "b"})
    rerun = end(record_of, Status.OK, 2, metrics=FIRST, disturbed="tar took 40%", note="a remark")
    found = read([SWEEP, before, SWEEP, rerun])
    kept = MERGED | {"train_s": 5.0}
    assert (found.metrics, found.provenance, found.attempt) == (kept, {"host": "b"}, 2)
    told = "the timing is an earlier attempt's: this one's was disturbed (tar took 40%)"
    assert (found.note, found.disturbed) == (f"a remark; {told}", "tar took 40%")
    again = read([SWEEP, before, SWEEP, rerun, timed(disturbed="all busy")])
    assert again.metrics == kept and again.note == f"{found.note}; timed again, in vain: all busy"
    well = read([SWEEP, before, SWEEP, rerun, timed(metrics={"samples_per_s": 3.0})])
    assert (well.metrics["samples_per_s"], well.note) == (3.0, "a remark; timed again, alone")
    assert well.disturbed == "" and "train_s" not in well.metrics, "the earlier attempt's, which trained another time"
    assert read([SWEEP, before, SWEEP, rerun, SWEEP, end(record_of, Status.OK, 3, metrics=FIRST)]).metrics == FIRST


def test_a_repetition_of_what_is_no_ok_trial_is_nothing(record_of):
    assert read([SWEEP, end(record_of, Status.OOM), timed()]).status is Status.OOM
    odd = [timed(), Record(kind=Kind.TIMED, value={}), Record(kind=Kind.TIMED, value=7)]
    assert list(effective_records(odd)) == odd


def test_what_was_repeated_is_known_until_a_rerun_has_ended(record_of):
    ok = end(record_of, Status.OK)
    assert repeated([SWEEP, ok, timed()]) == {"1-32-none-0"}
    assert repeated([SWEEP, ok, timed(), SWEEP, ok]) == set()
    assert repeated([SWEEP, ok, timed(Status.FAILED, again=True)]) == set(), "the driver died before the next"
    assert repeated([SWEEP, ok, timed(Status.FAILED, again=True), timed(Status.FAILED)]) == {"1-32-none-0"}
