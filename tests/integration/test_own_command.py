"""Test a user's command on the command line."""

import json

import pandas as pd
import pytest

from orchestrator.cli.app import main

TRAIN = """
import argparse, json, sys
parser = argparse.ArgumentParser()
for name in ("bs", "seed"):
    parser.add_argument("--" + name, type=int)
parser.add_argument("--lr", type=float)
given = parser.parse_args()
if given.bs == 64:
    raise MemoryError("CUDA out of memory")
for epoch in range(3):
    print(f"Epoch time: {32 / given.bs}")
print(json.dumps({"accuracy": 0.9, "loss": given.lr}))
"""
COMMAND = (
    *("sweep=batch_scaling", "trainable=command", "trainable.samples_per_epoch=1000"),
    "trainable.argv='{python} -S train.py --bs {device_batch_size} --lr {lr} --seed {seed}'",
    "trainable.metrics.epoch_s='Epoch time: ([0-9.]+)'",
)
AXES = ("sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[32,64,128]", "sweep.axes.lr_rule=[none,linear]")


@pytest.fixture
def place(place):
    (place.folder / "train.py").write_text(TRAIN)
    return place


def test_a_command_can_be_swept(place):
    status, out, err = place.run(*COMMAND, *AXES, "sweep.axes.seed=[0]")
    assert status == 0, out + err
    summary = pd.read_csv(place.folder / "results/batch_scaling/tables/summary.csv")
    by_batch = summary[summary.lr_rule == "linear"].set_index("device_batch_size")
    assert by_batch.status.to_dict() == {32: "ok", 64: "oom", 128: "ok"}
    assert by_batch.samples_per_s[128] == pytest.approx(4000) and by_batch.accuracy[32] == 0.9
    trials = pd.read_csv(place.folder / "results/batch_scaling/tables/trials.csv")
    ok = trials[(trials.device_batch_size == 128) & (trials.lr_rule == "linear")]
    assert ok.loss.tolist() == [0.4] == ok.lr.tolist()

    (place.folder / "train.py").write_text(TRAIN + "\n# other code")
    status, _, err = place.run(*COMMAND, *AXES, "sweep.axes.seed=[0]")
    assert status == 2 and "source.argv" in err


def test_a_command_is_one_rank_with_all_workers(place, monkeypatch, capsys):
    monkeypatch.chdir(place.folder)
    assert main([*COMMAND, "sweep.axes.gpus=[1,3]", "mode=plan", "format=json", "backend=ray"]) == 0
    plan = json.loads(capsys.readouterr().out)["trials"]
    shapes = {(trial["gpus"], trial["ranks"], trial["cpus_per_rank"], trial["global_batch_size"]) for trial in plan}
    assert {(1, 1, 1, 32), (3, 1, 3, 96)} <= shapes


def test_errors_of_a_command_are_reported_before_it_starts(folder, capsys):
    command = ("trainable=command", "trainable.argv='train.py {batch} --json {{}}'", "trainable.metrics.loss='('")
    assert main(["sweep=batch_scaling", "strategy=ddp", *command]) == 2
    out, err = capsys.readouterr()
    assert out == "" and not (folder / "results").exists()
    assert all(part in err for part in ("{batch} is neither", "loss='(' is not a regular", "needs own_ranks")), err


@pytest.mark.slow
def test_a_stopped_command_times_out(place):
    (place.folder / "train.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    axes = ("sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[32]", "sweep.axes.lr_rule=[none]")
    status, out, err = place.run(*COMMAND, *axes, "sweep.axes.seed=[0]", "hang_s=2")
    assert status == 0, out + err  # a timeout is a result
    trials = pd.read_csv(place.folder / "results/batch_scaling/tables/trials.csv")
    assert trials.status.tolist() == ["timeout"] and "hang_s=2" in trials.note[0]
