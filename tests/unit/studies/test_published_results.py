import json

import pytest

from orchestrator.config.compose import initialised
from orchestrator.config.content_hashes import Versions
from orchestrator.schedule.cluster import Node
from orchestrator.store.journal import encode
from orchestrator.store.record import Kind, Record, TrialOutcome, TrialRecord
from orchestrator.store.results_folder import JOURNAL
from studies.published_results import gathered, kept, merged, reported
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.requests import unchecked
from trainables.supervised import settings as supervised_check


def sweep(what):
    return Record(kind=Kind.SWEEP, value={"fingerprint": {"code": what}})


def trial(name, seed, **axes):
    return [
        Record(kind=Kind.STARTED, value={"trial_id": name, "attempt": 1}),
        Record(
            kind=Kind.FINISHED, value=record_of(1, seed, trial_id=name).to_json() | {"axes": {**axes, "seed": seed}}
        ),
    ]


OLD = [sweep("old"), *trial("a0", 0, gpus=1), *trial("a1", 1, gpus=1), *trial("b0", 0, gpus=2)]
NEW = [sweep("new"), *trial("c0", 0, gpus=2), *trial("d0", 0, gpus=4), sweep("newer")]
ENDED = Record(kind=Kind.ENDED, value={"missing": 0})


def ends(records):
    return [record.value["trial_id"] for record in records if record.kind == Kind.FINISHED]


def test_each_cell_comes_from_the_last_journal_that_has_it():
    records = merged([OLD, NEW])
    assert ends(records) == ["a0", "a1", "c0", "d0"]
    assert [record.value for record in records if record.kind == Kind.SWEEP] == [{"fingerprint": {"code": "newer"}}]
    assert sum(record.kind == Kind.STARTED for record in records) == 4
    assert ends(merged([NEW, OLD])) == ["d0", "a0", "a1", "b0"]
    assert merged([[*OLD, ENDED], NEW])[-1].kind == Kind.FINISHED and merged([OLD, [*NEW, ENDED]])[-1] == ENDED


def test_infeasible_cells_are_not_merged():
    no_room = [
        Record(kind=Kind.FINISHED, value={"trial_id": name, "axes": {"gpus": gpus, "seed": 0}, "status": "infeasible"})
        for name, gpus in (("n0", 4), ("m0", 8))
    ]
    assert ends(merged([NEW, [sweep("small"), *no_room]])) == ["c0", "d0"]


def test_folders_are_gathered_with_curves_and_differences(tmp_path, capsys):
    for name, records in (("old", OLD), ("new", NEW)):
        for end in ends(records):
            curve = tmp_path / name / "trials" / end / "metrics.jsonl"
            curve.parent.mkdir(parents=True)
            curve.write_text("{}\n")
        (tmp_path / name / JOURNAL).write_bytes(b"".join(encode(r.kind, r.value) + b"\n" for r in records))
    gathered([tmp_path / "old", tmp_path / "new"], tmp_path / "both")
    lines = [json.loads(line) for line in (tmp_path / "both" / JOURNAL).read_text().splitlines()]
    assert [line["kind"] for line in lines].count("finished") == 4
    assert sorted(path.parent.name for path in tmp_path.glob("both/trials/*/metrics.jsonl")) == ["a0", "a1", "c0", "d0"]
    out = capsys.readouterr().out
    assert "old" in out and "code: 'old' → 'newer'" in out


PAGE = f"""<script type="application/json" id="data">{
    json.dumps({"data": {"cells": {}}, "plots": {"loss": {"title": "", "spec": {"mark": "point"}, "data": "cells"}}})
}</script>"""
"""The data of a report's page with one plot."""


def test_kept_files_replace_the_folder(tmp_path):
    for name in (JOURNAL, "tables/claims.md", "tables/scaling.md", "tables/trials.parquet", "report.html"):
        path = tmp_path / "results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE if name == "report.html" else name)
    curve = tmp_path / "results" / "trials" / "t" / "metrics.jsonl"
    curve.parent.mkdir(parents=True)
    curve.write_text('{"epoch": 1, "loss": 2.5, "lr": 0.1, "data_s": 0.01}\n')
    into = tmp_path / "docs"
    into.mkdir()
    (into / "old.md").write_text("")
    kept(tmp_path / "results", into)
    assert {path.name for path in into.iterdir()} == {JOURNAL, "claims.md"}
    (tmp_path / "results" / "tables" / "loss_distance.md").write_text("")
    kept(tmp_path / "results", into)
    assert {path.name for path in into.iterdir()} == {JOURNAL, "claims.md", "loss_distance.md", "loss.svg", "trials"}
    assert (into / "trials" / "t" / "metrics.jsonl").read_text() == '{"epoch": 1, "loss": 2.5}\n'


CURVES = (
    "sweep=published/data_parallel",
    "data=npz",
    "data.path=x.npz",
    "trainable.precision=bf16",
    "sweep.axes.gpus=[1]",
    'sweep.axes.model.batch_norm=[replica,"ghost:128"]',
    "sweep.exclude=[{global_batch_size:128,lr_rule:[linear,sqrt]},"
    '{global_batch_size:128,model.batch_norm:"ghost:128"},{lr_rule:[none,sqrt],model.batch_norm:"ghost:128"}]',
)
"""E3's loss curves on one GPU."""


def learnt(trial):
    """Batch norm over 256 images costs two points and 10% of the loss; the linear rule gains, the root half as much."""
    whole = trial.batch.global_batch_size == 256 and trial.axes["model.batch_norm"] == "replica"
    gain = {"none": 0.3, "sqrt": 0.15, "linear": 0.0}[trial.lr.rule] if whole else 0.0
    chance = 0.001 * [-1, 0, 1][trial.seed]
    accuracy = (
        0.92 + chance + 0.0001 * trial.batch.global_batch_size * trial.seed / 256 - (0.02 + 0.0002 * trial.seed) * whole
    )
    losses = [(1.1 if whole else 1.0) * (1 + gain) * (1 + 10 * chance) * 0.9**epoch for epoch in range(50)]
    return accuracy, losses


def write_made_up(results, question, trials):
    """A folder of results in which they ended so."""
    records = [Record(kind=Kind.SWEEP, value={"fingerprint": question})]
    for trial in trials:
        accuracy, losses = learnt(trial)
        metrics = {"accuracy": accuracy, "loss": losses[-1], "epochs": 50.0, "samples_per_s": 1000.0 + trial.seed}
        outcome = TrialOutcome(note="", wall_s=10.0, metrics=metrics, provenance={"device_model": "H200"})
        ended = TrialRecord.of(trial, outcome, attempt=1, finished_at="2026-11-22T12:00:00+00:00")
        records.append(Record(kind=Kind.FINISHED, value=ended.to_json()))
        curve = results / "trials" / trial.trial_id / "metrics.jsonl"
        curve.parent.mkdir(parents=True)
        curve.write_text("".join(json.dumps({"epoch": i, "loss": loss}) + "\n" for i, loss in enumerate(losses, 1)))
    (results / JOURNAL).write_bytes(b"".join(encode(record.kind, record.value) + b"\n" for record in records))


@pytest.mark.slow
def test_loss_curves_on_one_gpu_settle_what_one_gpu_can(tmp_path, monkeypatch):
    monkeypatch.setattr(Versions, "data", lambda self, config: "unread")
    monkeypatch.setattr(supervised_check, "absent", lambda data: ())
    with initialised():
        question = unchecked(*CURVES)
        trials = question.trials([Node(name="server", cpus=64, gpus=4)])
        write_made_up(tmp_path / "brought", question.fingerprint(), trials)
    assert len(trials) == 15
    gathered([tmp_path / "brought"], tmp_path / "data_parallel_curves")
    reported("data_parallel", "full", tmp_path / "data_parallel_curves")
    names = {path.name for path in kept(tmp_path / "data_parallel_curves", tmp_path / "docs")}
    assert {JOURNAL, "claims.md", "summary.csv", "loss_distance.md", "loss.svg"} <= names
    rows = [line.split(" | ") for line in (tmp_path / "docs" / "claims.md").read_text().splitlines()]
    said = {row[0].strip("| "): row[1].strip().partition(":")[0] for row in rows if len(row) > 3}
    verdicts = [verdict for sentence, verdict in said.items() if sentence.endswith(".")]
    # Of two GPUs nothing is known. Of accuracies that leaves the emulated pair and batch norm; of losses linear
    # against none and against the root.
    assert verdicts == ["inconclusive", "confirmed", "inconclusive", "refuted", "confirmed", "confirmed"]
    gathered([tmp_path / "docs"], tmp_path / "again" / "data_parallel_curves")
    reported("data_parallel", "full", tmp_path / "again" / "data_parallel_curves")
    for name in ("claims.md", "loss_distance.md"):
        again = tmp_path / "again" / "data_parallel_curves" / "tables" / name
        assert again.read_text() == (tmp_path / "docs" / name).read_text()  # from the kept files alone
    apart = (tmp_path / "docs" / "loss_distance.md").read_text()
    assert "batch_norm=ghost:128" in apart and apart.count("| 50 ") == 10  # pairs of five cells
