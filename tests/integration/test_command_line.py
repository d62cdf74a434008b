"""The command line from outside: real processes, on the in-process back end, with a trainable that leaves a trace."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]

TRAINING = '''
"""Appends a line to a file outside the results for every execution: the count of what really ran."""
import os
import time

from trainables.context import DivergedError


def train(config, context):
    with open(os.environ["EXECUTIONS"], "a") as file:
        file.write(context.trial_id + "\\n")
    pause = config["trainable"]["pause_s"]
    for epoch in (1, 2):
        if pause:
            time.sleep(pause / 2)
        if context.should_stop():
            return
        context.report({"epoch": epoch, "loss": 1 / epoch, "val_accuracy": 0.5})
    if config["trainable"]["breaks"] == context.seed:
        raise RuntimeError("this seed breaks")
    if config["trainable"]["diverges"] == context.seed:
        raise DivergedError("loss is nan")
    speed = 100.0 * context.batch.global_batch_size ** 0.5
    context.summarize({"samples_per_s": speed, "accuracy": 0.9, "val_accuracy": 0.9, "epoch_s": 1.0, "train_s": 2.0})
'''

CONFIG = """
_target_: tracing_training:train
lr: 0.1
reference_batch_size: 8
pause_s: 0
breaks: null
diverges: null
"""

SWEEP = """
# @package _global_
defaults:
  - override /trainable: tracing
sweep:
  name: traced
  axes: {gpus: [1], device_batch_size: [8, 16], lr_rule: [none, linear], seed: [0, 1, 2]}
trusted_modules: [tracing_training]
"""


class Place:
    """A folder of a user's own, with a conf of the user's own, to start the orchestrator in."""

    def __init__(self, folder):
        self.folder = folder
        self.executions = folder / "executions.txt"
        for name, text in (
            ("tracing_training.py", TRAINING),
            ("my/trainable/tracing.yaml", CONFIG),
            ("my/sweep/traced.yaml", SWEEP),
        ):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self, *arguments):
        search = f"hydra.searchpath=[file://{self.folder}/my]"
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "backend=inprocess", "report.html=false", search, *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{self.folder}", "EXECUTIONS": str(self.executions)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def executed(self):
        return self.executions.read_text().split() if self.executions.exists() else []

    @property
    def results(self):
        return self.folder / "results" / "traced"

    def journal(self):
        lines = self.results.joinpath("journal.jsonl").read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def finished(self):
        return [each["value"]["trial_id"] for each in self.journal() if each["kind"] == "finished"]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_a_sweep_ends_in_tables_and_the_same_command_runs_nothing_again(place):
    status, out, err = place.run("sweep=traced")
    assert status == 0, out + err
    assert len(place.executed()) == 12 == len(set(place.executed()))
    summary = pd.read_csv(place.results / "tables/summary.csv")
    assert len(summary) == 4 and (summary.n_ok == 3).all() and (summary.status == "ok").all()
    for name in ("tables/speedup.md", "tables/accuracy.md"):
        assert (place.results / name).read_text().strip() in out
    assert len(list((place.results / "trials").iterdir())) == 12

    before = (place.results / "tables/summary.csv").read_text()
    status, out, err = place.run("sweep=traced")
    assert status == 0 and "12 of 12 trials were finished before" in out
    assert len(place.executed()) == 12
    assert (place.results / "tables/summary.csv").read_text() == before


def test_a_widened_grid_runs_only_what_is_new(place):
    place.run("sweep=traced", "sweep.axes.seed=[0]")
    status, out, _ = place.run("sweep=traced", "sweep.axes.seed=[0,1]", "sweep.axes.device_batch_size=[8,16,32]")
    assert status == 0 and "4 of 12 trials were finished before" in out
    assert len(place.executed()) == 12 == len(set(place.executed()))


def test_report_rebuilds_the_tables_and_runs_nothing(place):
    place.run("sweep=traced", "sweep.axes.seed=[0]")
    table = place.results / "tables/summary.csv"
    text = table.read_text()
    table.unlink()
    status, out, err = place.run("sweep=traced", "mode=report")
    assert status == 0, err
    assert table.read_text() == text and len(place.executed()) == 4


def test_failures_are_rows_and_rerun_is_explicit(place):
    status, out, _ = place.run("sweep=traced", "trainable.breaks=1", "trainable.diverges=2")
    assert status == 1
    trials = pd.read_csv(place.results / "tables/trials.csv")
    assert trials.groupby("seed").status.unique().map(list).to_dict() == {0: ["ok"], 1: ["failed"], 2: ["diverged"]}
    assert "RuntimeError: this seed breaks" in out
    failed = trials[trials.status == "failed"].trial_id.iloc[0]
    assert 'raise RuntimeError("this seed breaks")' in (place.results / "trials" / failed / "rank0.log").read_text()
    assert place.run("sweep=traced", "trainable.breaks=1", "trainable.diverges=2")[0] == 1
    assert len(place.executed()) == 12
    place.run("sweep=traced", "trainable.breaks=1", "trainable.diverges=2", "rerun=failed")
    assert len(place.executed()) == 16


def test_a_diverged_trial_is_a_result(place):
    assert place.run("sweep=traced", "trainable.diverges=2")[0] == 0


def test_more_gpus_than_there_are_is_a_row_and_no_error(place):
    status, out, _ = place.run("sweep=traced", "sweep.axes.gpus=[1,64]", "sweep.axes.seed=[0]")
    assert status == 0 and len(place.executed()) == 4
    summary = pd.read_csv(place.results / "tables/summary.csv")
    assert summary[summary.gpus == 64].status.unique().tolist() == ["infeasible"]
    assert "needs 64 ranks" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sweep=tracd"], ["did you mean 'traced'"]),
        (["sweep=traced", "budgt.epochs=1", "modle=x"], ["did you mean 'budget.epochs'", "'modle'"]),
        (
            ["sweep=traced", "sweep.axes.device_batch_size=[0]", "trainable.lr=-1", "sweep.axes.gpus=[-1]", "rerun=al"],
            ["device_batch_size must be", "trainable.lr must be", "gpus must be", "did you mean 'all'"],
        ),
        (["sweep=traced", "sweep.axes.seed='range(0,'"], ["sweep.axes.seed"]),
        (["sweep=traced", 'sweep.axes."trainable.nope"=[1]'], ["'trainable.nope' is no config key"]),
        ([], ["choose a sweep: sweep=batch_scaling"]),
    ],
)
def test_a_wrong_request_is_told_whole_and_leaves_nothing(place, arguments, told):
    status, out, err = place.run(*arguments)
    assert status == 2 and out == ""
    assert all(part in err for part in told), err
    assert not (place.folder / "results").exists() and not (place.folder / "outputs").exists()


def test_plan_as_json_is_one_object_and_nothing_else(place):
    status, out, err = place.run("sweep=traced", "mode=plan", "plan.format=json")
    assert (status, err) == (0, "")
    assert len(json.loads(out)["trials"]) == 12
    assert not place.executed() and not (place.folder / "results").exists()


def test_any_config_key_is_an_axis_and_a_string_is_hydras_grammar(place):
    status, out, err = place.run(
        "sweep=traced", 'sweep.axes."trainable.lr"=[0.1,0.2]', "sweep.axes.seed='range(0,3)'", "sweep.axes.lr_rule=none"
    )
    assert status == 0, err
    summary = pd.read_csv(place.results / "tables/summary.csv")
    assert sorted(summary["trainable.lr"].unique()) == [0.1, 0.2] and (summary.n_ok == 3).all()


def test_hydras_multirun_runs_whole_sweeps(place):
    status, out, err = place.run("sweep=traced", "sweep.axes.seed=[0]", "sweep.name=one,two", "--multirun")
    assert status == 0, err
    assert {path.name for path in (place.folder / "results").iterdir()} == {"one", "two"}


def test_a_conf_package_in_the_users_folder_does_not_stand_before_ours(place):
    (place.folder / "conf").mkdir()
    (place.folder / "conf/__init__.py").write_text("raise RuntimeError('not this one')")
    (place.folder / "conf/config.yaml").write_text("not: ours")
    assert place.run("sweep=traced", "mode=plan")[0] == 0


def test_another_configuration_is_refused_with_the_difference(place):
    place.run("sweep=traced", "sweep.axes.seed=[0]")
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=3")
    assert status == 2 and "config.budget.epochs: 10 → 3" in err and "allow_changed=true" in err
    assert len(place.executed()) == 4
    status, out, _ = place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=3", "allow_changed=true")
    assert status == 0 and len(set(place.executed())) == 8
    assert len(pd.read_csv(place.results / "tables/trials.csv")) == 4


def test_other_trainable_code_is_other_trials(place):
    place.run("sweep=traced", "sweep.axes.seed=[0]")
    (place.folder / "tracing_training.py").write_text(TRAINING + "\n# changed\n")
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0]")
    assert status == 2 and "source.tracing_training:train: " in err


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_a_second_driver_leaves_at_once_and_names_the_first(place):
    first = place.start("sweep=traced", "trainable.pause_s=0.5")
    wait_for(lambda: (place.results / "owner.json").exists(), first)
    status, _, err = place.run("sweep=traced", "trainable.pause_s=0.5")
    assert status == 2 and f"process {first.pid} on host" in err
    first.kill()
    first.communicate()
    assert place.run("sweep=traced", "trainable.pause_s=0.5", "sweep.axes.seed=[0]")[0] == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_sweep_and_the_same_command_continues(place, number, status):
    process = place.start("sweep=traced", "trainable.pause_s=0.3")
    wait_for(lambda: len(place.executed()) >= 2, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == status, err
    done = place.finished()
    assert 1 <= len(done) < 12 and "planned trials have not run" in out
    assert place.run("sweep=traced", "trainable.pause_s=0.3", "sweep.axes.seed=[0,1]")[0] == 0
    assert not set(done) & set(place.executed()[len(done) + 1 :])


def test_kill_9_at_any_moment_loses_no_finished_trial_and_runs_none_twice(place):
    moments = random.Random(7)
    again = []
    for _ in range(4):
        process = place.start("sweep=traced", "trainable.pause_s=0.05")
        time.sleep(0.5 + moments.random())
        process.kill()
        process.communicate()
        finished = place.finished() if (place.results / "journal.jsonl").exists() else []
        again.append((set(finished), len(place.executed())))
    assert place.run("sweep=traced", "trainable.pause_s=0.05")[0] == 0
    assert len(place.finished()) == 12 == len(set(place.finished()))
    for finished, executions in again:
        assert not finished & set(place.executed()[executions:])
