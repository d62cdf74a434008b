import hashlib
from typing import Any

import pytest

from orchestrator.journal.line import Kind, Record
from orchestrator.storage.layout import Layout
from orchestrator.storage.trial_files import HASHED, digests
from orchestrator.verify import files as verify_files
from trainables.checkpoints.generations import Generations


@pytest.fixture
def layout(layout: Layout) -> Layout:
    layout.trial("a").mkdir()
    return layout


def ended(layout: Layout) -> list[Record]:
    value: dict[str, Any] = {"trial_id": "a", "attempt": 1, "files": digests(layout.trial("a"))}
    return [Record(kind=Kind.STARTED, value={"trial_id": "a"}), Record(kind=Kind.FINISHED, value=value)]


@pytest.mark.parametrize("name", HASHED)
def test_a_file_cut_off_at_any_byte_is_named(layout: Layout, name: str) -> None:
    path, whole = layout.trial("a") / name, bytes(range(64))
    path.write_bytes(whole)
    records = ended(layout)
    assert list(verify_files.of_ended_trials(layout, records)) == []
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        (told,) = verify_files.of_ended_trials(layout, records)
        assert told == f"{path}: changed since the trial ended, its checksum does not match"
    path.unlink()
    (told,) = verify_files.of_ended_trials(layout, records)
    assert told == f"{path}: lost since the trial ended"


def test_a_trial_that_was_started_again_writes_its_files_anew(layout: Layout) -> None:
    layout.config("a").write_text("one")
    records = [*ended(layout), Record(kind=Kind.STARTED, value={"trial_id": "a"})]
    layout.config("a").write_text("two")
    assert list(verify_files.of_ended_trials(layout, records)) == []


def test_a_checkpoint_cut_off_at_any_byte_or_flipped_is_named_and_the_one_before_is_used(layout: Layout) -> None:
    generations = Generations(folder=layout.checkpoint("a"), rank=0, world_size=1)
    generations.write(1, b"the first")
    generations.write(2, b"the second, that is longer")
    assert list(verify_files.of_checkpoints(layout)) == []
    digest = hashlib.sha256(b"the second, that is longer").hexdigest()[:16]
    path = layout.checkpoint("a") / f"00000002-rank0-{digest}.pt"
    whole = path.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for damaged in [*(whole[:length] for length in range(len(whole))), *flipped]:
        path.write_bytes(damaged)
        (told,) = verify_files.of_checkpoints(layout)
        assert told.startswith(f"{path}: its content does not match")
        assert generations.newest() == (1, {0: b"the first"})


def test_of_a_running_trial_only_the_last_line_may_be_torn(layout: Layout) -> None:
    layout.config("a").write_text("data: {name: digits}")
    layout.metrics("a").write_bytes(b'{"epoch":1}\n{"epo')
    assert list(verify_files.of_running_trials(layout, ["a", "not-begun"])) == []
    layout.config("a").write_text("data: {name: dig")
    layout.metrics("a").write_bytes(b'{"epo\n{"epoch":2}\n')
    config, curve = verify_files.of_running_trials(layout, ["a"])
    assert config.startswith(f"{layout.config('a')}: not YAML") and curve.startswith(
        f"{layout.metrics('a')}: line 1 is"
    )


def test_where_the_journal_is_alone_every_table_is_lost(layout: Layout) -> None:
    layout.tables.rmdir()
    (told,) = verify_files._different(layout.tables, {"trials.csv": b""})
    assert told == f"{layout.table('trials.csv')}: lost; mode=report makes it again"


def test_a_folder_in_the_place_of_a_file_is_a_file_that_is_lost(layout: Layout) -> None:
    for path in (layout.table("summary.csv"), layout.table("trials.csv"), layout.metrics("a")):
        path.write_bytes(b"")
    records = ended(layout)
    layout.metrics("a").unlink()
    for path in (layout.table("trials.csv"), layout.config("a"), layout.metrics("a")):
        path.unlink(missing_ok=True)
        path.mkdir()
    told = list(verify_files._different(layout.tables, {"trials.csv": b"", "summary.csv": b""}))
    assert told == [f"{layout.table('trials.csv')}: lost; mode=report makes it again"]
    assert list(verify_files.of_ended_trials(layout, records)) == [f"{layout.metrics('a')}: lost since the trial ended"]
    assert list(verify_files.of_running_trials(layout, ["a"])) == []
