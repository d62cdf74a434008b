"""Test that a disturbed timing is repeated without the whole training, also by the next driver."""

import json

import pandas as pd
import pytest

from orchestrator.store.journal import decode, encode
from orchestrator.store.record import Record
from tests.drivers import command

ASKED = (
    *("sweep=batch_scaling", "backend=inprocess", "sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[64]"),
    *("sweep.axes.lr_rule=[none]", "sweep.axes.seed=[0]", "model=mlp", "budget.epochs=30", "report.html=false"),
)
KEPT = ("accuracy", "val_accuracy", "loss", "epochs", "steps", "wall_s", "attempt")


def disturb(journal):
    """Mark timings in the journal as disturbed by other programs."""
    records = []
    for record in map(decode, journal.read_bytes().splitlines()):
        if record.kind == "finished":
            metrics = record.value["metrics"] | {"foreign_cpu": 0.5}
            record = Record(kind=record.kind, value={**record.value, "metrics": metrics})
        records.append(record)
    journal.write_bytes(b"".join(encode(record.kind, record.value) + b"\n" for record in records))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies", "target"), [("", "null"), ("trial.started:1", "null"), ("journal.written:2", "null"), ("", "0.5")]
)
def test_the_next_driver_repeats_a_disturbed_timing(tmp_path, dies, target):
    folder = tmp_path / "results/batch_scaling"
    journal = folder / "journal.jsonl"

    def orchestrate(*more, **environment):
        ended = command.orchestrate(tmp_path, *ASKED, f"report.target={target}", *more, **environment)
        assert ended.returncode in (0, -9), ended.stdout + ended.stderr
        return int(ended.returncode)

    def row():
        return pd.read_csv(folder / "tables/trials.csv").iloc[0].dropna().to_dict()

    def timed():
        lines = map(json.loads, journal.read_text().splitlines())
        return [line["value"] for line in lines if line["kind"] == "finished" and line["value"]["measures"]]

    assert orchestrate("rerun_invalid=0") == 0
    disturb(journal)
    before = row()
    curve = (folder / f"trials/{before['trial_id']}/metrics.jsonl").read_bytes()
    if dies:
        assert orchestrate(ORCHESTRATOR_CRASH_AT=dies) == -9
        assert orchestrate("mode=verify") == 0
        assert orchestrate("mode=report") == 0
    assert orchestrate() == 0
    [repetition] = timed()
    after = row()
    assert {name: after[name] for name in KEPT} == {name: before[name] for name in KEPT}
    whole = target != "null" and not repetition["disturbed"]
    assert [after[name] != before[name] for name in ("first_epoch_s", "train_s")] == [whole, whole]
    assert (folder / f"trials/{before['trial_id']}/metrics.jsonl").read_bytes() == curve
    assert repetition["metrics"]["window_s"] >= 2 and repetition["measures"] == before["trial_id"]
    if repetition["disturbed"]:  # this machine may be busy, too
        assert not after["timing_valid"] and "timed" in str(after["note"])
    else:
        note = "re-timed alone" + ("" if whole else ", except first_epoch_s, train_s")
        assert after["timing_valid"] and after["note"] == note
        assert after["samples_per_s"] == repetition["metrics"]["samples_per_s"] != before["samples_per_s"]
    assert orchestrate("mode=verify") == 0
    told = journal.read_bytes()
    assert orchestrate("mode=report") == orchestrate() == 0
    assert len(timed()) == 1 and journal.read_bytes().startswith(told) and row() == after
