"""Test probes and early stops on the project's own training."""

import json

import pytest

from tests.drivers import command

ASKED = (
    *("sweep=batch_scaling", "backend=inprocess", "sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[32,512]"),
    *("sweep.axes.lr_rule=[none]", "trainable.window_s=0.1", "model=mlp", "report.html=false", "budget.epochs=2"),
)


@pytest.mark.slow
def test_losing_cells_are_neither_timed_nor_repeated(tmp_path):
    def orchestrate(*more):
        return command.orchestrate(tmp_path, *ASKED, *more)

    ended = orchestrate("sweep.phases=[probe,train]")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = (tmp_path / "results/batch_scaling/journal.jsonl").read_text().splitlines()
    records = [(record["kind"], record["value"]) for record in map(json.loads, lines)]
    probed = [value for kind, value in records if kind == "probed"]
    assert len(probed) == 2 and all(probe["samples_per_s"] > 0 for probe in probed)
    last = {(v["device_batch_size"], v["seed"]): v for kind, v in records if kind == "finished"}
    assert [last[32, seed]["status"] for seed in range(3)] == ["ok"] * 3
    assert [last[512, seed]["skipped_by"] for seed in range(3)] == ["early_stop", "phases", "phases"]
    assert "samples_per_s" not in last[512, 0]["metrics"] and last[512, 0]["metrics"]["val_accuracy"] < 0.9
    verified = orchestrate("sweep.phases=[probe,train]", "mode=verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
