"""Test on real training that ASHA stops a diverging learning rate halfway."""

import json

import pytest

from tests.drivers import command

ASKED = (
    *("sweep=batch_scaling", "sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[128]", "sweep.axes.lr_rule=[sqrt]"),
    *("sweep.axes.lr_multiplier=[1,16]", "sweep.axes.seed=[0]", "model=mlp", "budget.epochs=300", "report.html=false"),
    *("trainable.window_s=0.1", "rerun_invalid=0", "cluster.dashboard=false"),
)


@pytest.mark.slow
def test_a_bad_rate_stops_halfway_and_stays_stopped(tmp_path):
    def orchestrate(*more):
        return command.orchestrate(tmp_path, *ASKED, *more)

    def ends():
        lines = (tmp_path / "results/batch_scaling/journal.jsonl").read_text().splitlines()
        return [record["value"] for record in map(json.loads, lines) if record["kind"] == "finished"]

    ended = orchestrate("sweep.early_stop=asha")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    good, all_failing = ends()
    assert (good["lr_multiplier"], good["status"]) == (1, "ok")
    assert (all_failing["status"], all_failing["skipped_by"]) == ("skipped", "early_stop")
    assert all_failing["note"].startswith("sweep.early_stop: val_accuracy 0.")
    assert 150 <= all_failing["metrics"]["epochs"] < 300
    again = orchestrate("sweep.early_stop=asha")
    assert again.returncode == 0 and len(ends()) == 2, again.stdout + again.stderr
