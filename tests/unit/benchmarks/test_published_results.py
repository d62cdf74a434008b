"""Results of several machines as one journal, and what of its report is kept."""

import json

from orchestrator.journal.kind import Kind
from orchestrator.journal.line import Record, encode
from orchestrator.storage.layout import JOURNAL
from tests.benchmarks.published_results import gathered, kept, merged


def asked(what):
    return Record(kind=Kind.SWEEP, value={"asked": {"code": what}})


def trial(name, seed, **axes):
    return [
        Record(kind=Kind.STARTED, value={"trial_id": name, "attempt": 1}),
        Record(kind=Kind.FINISHED, value={"trial_id": name, "axes": {**axes, "seed": seed}}),
    ]


OLD = [asked("old"), *trial("a0", 0, gpus=1), *trial("a1", 1, gpus=1), *trial("b0", 0, gpus=2)]
NEW = [asked("new"), *trial("c0", 0, gpus=2), *trial("d0", 0, gpus=4), asked("newer")]


def ends(records):
    return [record.value["trial_id"] for record in records if record.kind == Kind.FINISHED]


def test_of_each_cell_the_last_that_has_it_is_taken_whole():
    found = merged([OLD, NEW])
    assert ends(found) == ["a0", "a1", "c0", "d0"]
    assert [record.value for record in found if record.kind == Kind.SWEEP] == [{"asked": {"code": "newer"}}]
    assert sum(record.kind == Kind.STARTED for record in found) == 4
    assert ends(merged([NEW, OLD])) == ["d0", "a0", "a1", "b0"]


def test_folders_are_gathered_with_their_curves_and_told_what_differs(tmp_path, capsys):
    for name, records in (("old", OLD), ("new", NEW)):
        curve = tmp_path / name / "trials" / f"of_{name}" / "metrics.jsonl"
        curve.parent.mkdir(parents=True)
        curve.write_text("{}\n")
        (tmp_path / name / JOURNAL).write_bytes(b"".join(encode(r.kind, r.value) + b"\n" for r in records))
    gathered([tmp_path / "old", tmp_path / "new"], tmp_path / "both")
    lines = [json.loads(line) for line in (tmp_path / "both" / JOURNAL).read_text().splitlines()]
    assert [line["kind"] for line in lines].count("finished") == 4
    assert sorted(path.parent.name for path in tmp_path.glob("both/trials/*/metrics.jsonl")) == ["of_new", "of_old"]
    assert "old was asked otherwise: code: 'old' → 'newer'" in capsys.readouterr().out


def test_small_files_replace_what_lay_there(tmp_path):
    for name in (JOURNAL, "tables/claims.md", "tables/scaling.md", "tables/trials.parquet", "report/loss.svg"):
        path = tmp_path / "results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    into = tmp_path / "docs"
    into.mkdir()
    (into / "old.md").write_text("")
    kept(tmp_path / "results", into)
    assert {path.name for path in into.iterdir()} == {JOURNAL, "claims.md"}
    (tmp_path / "results" / "tables" / "loss_distance.md").write_text("")
    kept(tmp_path / "results", into)
    assert {path.name for path in into.iterdir()} == {JOURNAL, "claims.md", "loss_distance.md", "loss.svg"}
