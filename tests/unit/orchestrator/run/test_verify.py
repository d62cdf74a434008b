"""Checks of a results directory by `mode=verify`, under the journal's own config and under another one."""

import hashlib
import re

import pytest

from orchestrator.run import verify as verified
from orchestrator.run.verify import JournalCheck, of_ended_trials, of_the_plan
from orchestrator.store.history import History
from orchestrator.store.journal import Journal
from orchestrator.store.record import Kind, Record
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.store.trial_files import HASHED, digests
from tests.unit.orchestrator.report import demo
from trainables.checkpoints import Generations

RECORD = demo.records()[0]


@pytest.fixture
def folder(tmp_path):
    results = demo.results(tmp_path / "demo", [RECORD])
    results.quarantine.write_bytes(b"")
    with results.journal.open("ab") as file:
        file.write(b'{"checksum":"half')
    return results


def test_traces_of_a_crash_are_remarks_not_violations(folder):
    verification = verified.verify(folder, [RECORD.trial_id, "other"], {})
    assert verification.violations == []
    damage, counts, quarantine = verification.remarks
    assert damage.startswith(f"{folder.journal}: line 4: torn: ") and "17 bytes" in damage
    assert re.findall(r"\d+", counts) == ["3", "1", "1", "1", "2"]  # records, trials, ends, missing ends of all planned
    assert quarantine.startswith(f"{folder.quarantine} ")


def test_a_damaged_record_is_a_violation(folder):
    first, _, rest = folder.journal.read_bytes().partition(b"\n")
    folder.journal.write_bytes(first[:-1] + b"?\n" + rest)
    (told,) = verified.verify(folder, [], {}).violations
    assert told.startswith(f"{folder.journal}: line 1: corrupt")


@pytest.mark.parametrize(("fingerprint", "violations"), [({}, 1), ({"epochs": 2}, 0)])
def test_plan_is_compared_only_under_the_same_config(folder, fingerprint, violations):
    with Journal.open(folder.journal) as journal:
        journal.append(Kind.ENDED, {"missing": 0})
    verification = verified.verify(folder, [RECORD.trial_id, "other"], fingerprint)
    assert len(verification.violations) == violations
    assert any("another configuration" in remark for remark in verification.remarks) is not bool(violations)
    assert any("planned without one" in remark for remark in verification.remarks) is bool(violations)


@pytest.fixture
def files(tmp_path):
    results = ResultsFolder(tmp_path / "files")
    results.create()
    results.trial("a").mkdir()
    return results


def ended(files, *more):
    value = RECORD.to_json() | {"trial_id": "a", "attempt": 1, "files": digests(files.trial("a"))}
    return History([started(), Record(kind=Kind.FINISHED, value=value), *more])


@pytest.mark.parametrize("name", HASHED)
def test_file_cut_off_at_any_byte_is_detected(files, name):
    path, whole = files.trial("a") / name, bytes(range(64))
    path.write_bytes(whole)
    history = ended(files)
    assert list(of_ended_trials(files, history)) == []
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        (told,) = of_ended_trials(files, history)
        assert told.startswith(f"{path}: changed")
    path.unlink()
    (told,) = of_ended_trials(files, history)
    assert told.startswith(f"{path}: lost")


def test_files_of_a_restarted_trial_may_change(files):
    files.config("a").write_text("one")
    history = ended(files, started(2))
    files.config("a").write_text("two")
    assert list(of_ended_trials(files, history)) == []


def test_damaged_checkpoint_is_detected_and_the_previous_one_used(files):
    generations = Generations(folder=files.checkpoint("a"), rank=0, world_size=1)
    generations.write(1, b"the first")
    generations.write(2, b"the second, that is longer")
    assert list(verified.of_checkpoints(files)) == []
    digest = hashlib.sha256(b"the second, that is longer").hexdigest()[:16]
    path = files.checkpoint("a") / f"00000002-rank0of1-{digest}.pt"
    whole = path.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for damaged in [*(whole[:length] for length in range(len(whole))), *flipped]:
        path.write_bytes(damaged)
        (told,) = verified.of_checkpoints(files)
        assert told.startswith(f"{path}: ")
        assert generations.newest() == (1, {0: b"the first"})


def test_running_trial_may_have_only_its_last_line_torn(files):
    files.config("a").write_text("data: {name: digits}")
    files.metrics("a").write_bytes(b'{"epoch":1}\n{"epo')
    assert list(verified.of_running_trials(files, ["a", "not-begun"])) == []
    files.config("a").write_text("data: {name: dig")
    files.metrics("a").write_bytes(b'{"epo\n{"epoch":2}\n')
    config, curve = verified.of_running_trials(files, ["a"])
    assert config.startswith(f"{files.config('a')}: not YAML") and curve.startswith(f"{files.metrics('a')}: line 1 is")


def test_lost_and_changed_tables_of_an_ended_sweep_are_named(files):
    for name in ("trials.csv", "summary.csv", "speedup.md"):
        files.table(name).write_text(name)
    digests = verified.table_digests(files)
    history = History([Record(kind=Kind.ENDED, value={"missing": 0, "tables": digests})])
    assert list(verified.of_the_tables(files, history)) == []
    files.table("summary.csv").write_text("summary.csV")
    files.table("speedup.md").unlink()
    files.table("speedup.md").mkdir()
    lost, changed = verified.of_the_tables(files, history)
    assert lost.startswith(f"{files.table('speedup.md')}: lost") and "mode=report" in lost
    assert changed.startswith(f"{files.table('summary.csv')}: changed")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"trial_id\na\n", ""),
        (b"trial_id\na\nb\n", "trial b"),
        (b"x\n1\n", "KeyError"),
        (b"\xff\n", "not a table"),
        (b"trial_id\na", "end is missing"),
        (b"", "end is missing"),
    ],
)
def test_table_of_a_running_sweep_has_only_journalled_trials(files, content, message):
    files.table("trials.csv").write_bytes(content)
    lines = list(verified.of_the_tables(files, ended(files)))
    assert len(lines) == bool(message) and all(message in line for line in lines)


def test_tables_half_written_on_a_full_disk_are_told(files):
    history = ended(files)
    halves = {
        "summary.parquet": b"PAR1\0\0",
        "recommendation.json": b'{"verdict": ',
        "speedup.md": b"| a",
        "x.csv": b"",
    }
    wholes = {"accuracy.md": b"text.\n", "trials.parquet": b"PAR1..PAR1", "claims.json": b"{}\n"}
    for name, content in (halves | wholes).items():
        files.table(name).write_bytes(content)
    told = list(verified.of_the_tables(files, history))
    assert [line.partition(": ")[0] for line in told] == sorted(str(files.table(name)) for name in halves)


def test_folder_in_place_of_a_file_means_lost(files):
    files.metrics("a").write_bytes(b"")
    history = ended(files)
    files.metrics("a").unlink()
    for path in (files.config("a"), files.metrics("a")):
        path.mkdir()
    (curve,) = of_ended_trials(files, history)
    assert curve.startswith(f"{files.metrics('a')}: lost")
    assert list(verified.of_running_trials(files, ["a"])) == []


def sweep(rerun="none"):
    return Record(kind=Kind.SWEEP, value={"fingerprint": {}, "rerun": rerun})


def started(attempt=1, trial_id="a"):
    return Record(kind=Kind.STARTED, value={"trial_id": trial_id, "attempt": attempt})


def retried(attempt=1):
    return Record(kind=Kind.RETRIED, value={"trial_id": "a", "attempt": attempt, "cause": "crash"})


def finished(attempt=1, status="ok", trial_id="a", **other):
    return Record(kind=Kind.FINISHED, value={"trial_id": trial_id, "attempt": attempt, "status": status} | other)


ENDED = Record(kind=Kind.ENDED, value={"missing": 0})


@pytest.mark.parametrize(
    "records",
    [
        [],
        [sweep(), started(), finished(), ENDED],
        [sweep(), started(), sweep(), started(2), finished(2)],
        [sweep(), started(), retried(), started(2), retried(2), started(3), finished(3, "failed")],
        [sweep(), started(), finished(), sweep("all"), started(2), finished(2)],
        [sweep(), started(), finished(1, "failed"), sweep("failed"), started(2), finished(2)],
        [sweep(), started(), finished(), sweep(["a", "c"]), started(2), finished(2)],
        [sweep(), finished(0, "infeasible"), sweep(), started(), finished()],
        [sweep(), started(), started(1, "b"), finished(1, "oom", "b"), finished()],
        [sweep(), started(), finished(), started(1, "b"), finished(1, "ok", "b", measures="a"), ENDED],
        [
            *(sweep(), started(), finished(), started(1, "b"), finished(1, "failed", "b", measures="a"), sweep("all")),
            *(started(2), finished(2), started(2, "b"), finished(2, "ok", "b", measures="a"), ENDED),
        ],
        [
            *(sweep(), started(), finished(), started(1, "b"), finished(1, "ok", "b", measures="a")),
            *(sweep(), started(2, "b"), finished(2, "ok", "b", measures="a"), ENDED),  # settling times it once more
        ],
        [sweep(), Record(kind="of a later version", value={}), ENDED],
    ],
)
def test_valid_sequences_of_records_have_no_violation(records):
    assert JournalCheck(records).violations == []


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([sweep(), started(), finished(), finished()], "record 4: trial a has"),
        ([sweep(), started(), finished(), sweep(), started(2)], "record 5: trial a was started"),
        ([sweep(), started(), finished(1, "oom"), sweep("failed"), started(2)], "had ended as oom"),
        ([sweep(), started(), finished(), sweep(["b"]), started(2)], "record 5: trial a was started"),
        ([sweep(), finished()], "attempt 1 ended as finished"),
        ([sweep(), started(), started(3)], "attempt 3 follows attempt 1"),
        ([sweep(), started(), retried(), finished()], "attempt 1 ended as finished"),
        ([sweep(), Record(kind=Kind.FINISHED, value={})], "record 2: a finished record"),
        ([sweep(), started(), finished(1, "grand")], "'grand' is not a valid Status"),
    ],
)
def test_invalid_sequences_of_records_are_violations(records, told):
    (violation,) = JournalCheck(records).violations
    assert told in violation


def test_ended_sweep_needs_an_end_for_every_planned_trial():
    assert JournalCheck([sweep(), ENDED]).history.missing == 0
    assert JournalCheck([sweep(), ENDED, sweep()]).history.missing is None
    assert list(of_the_plan(["a", "b"], ["a", "b", "old"], 0, 2)) == []
    assert list(of_the_plan(["a", "b"], ["a"], 1, 2)) == []
    assert list(of_the_plan(["a", "b", "wider"], ["a", "b"], 0, 2)) == []
    (violation,) = of_the_plan(["a", "b"], ["a", "extra seed"], 0, 2)
    assert "1 planned" in violation and violation.endswith(": b")
