"""The command line from outside: real processes, on the in-process back end, with a trainable that leaves a trace."""

import json
import random
import signal
import time

import pandas as pd
import pytest

from orchestrator.journal.journal import replay
from orchestrator.journal.line import encode
from tests.drivers.place import TRAINING, Place, wait_for


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, "report.html=false")


def test_a_sweep_ends_in_tables_and_the_same_command_runs_nothing_again(place):
    status, out, err = place.run("sweep=traced")
    assert status == 0, out + err
    assert len(place.ran()) == 12 == len(set(place.ran()))
    summary = pd.read_csv(place.results / "tables/summary.csv")
    assert len(summary) == 4 and (summary.n_ok == 3).all() and (summary.status == "ok").all()
    for name in ("tables/speedup.md", "tables/accuracy.md"):
        assert (place.results / name).read_text().strip() in out
    assert len(list((place.results / "trials").iterdir())) == 12

    before = (place.results / "tables/summary.csv").read_text()
    status, out, err = place.run("sweep=traced")
    assert status == 0 and "12 of 12 trials were finished before" in out
    assert len(place.ran()) == 12
    assert (place.results / "tables/summary.csv").read_text() == before


def test_a_widened_grid_runs_only_what_is_new(place):
    place.run("sweep=traced", "sweep.axes.seed=[0]")
    status, out, _ = place.run("sweep=traced", "sweep.axes.seed=[0,1]", "sweep.axes.device_batch_size=[8,16,32]")
    assert status == 0 and "4 of 12 trials were finished before" in out
    assert len(place.ran()) == 12 == len(set(place.ran()))


def test_report_rebuilds_the_tables_and_runs_nothing(place):
    place.run("sweep=traced", "sweep.axes.seed=[0]")
    table = place.results / "tables/summary.csv"
    text = table.read_text()
    table.unlink()
    status, out, err = place.run("sweep=traced", "mode=report")
    assert status == 0, err
    assert table.read_text() == text and len(place.ran()) == 4


def test_failures_are_rows_and_rerun_is_explicit(place):
    status, out, _ = place.run("sweep=traced", "trainable.breaks=1", "trainable.diverges=2")
    assert status == 1
    trials = pd.read_csv(place.results / "tables/trials.csv")
    assert trials.groupby("seed").status.unique().map(list).to_dict() == {0: ["ok"], 1: ["failed"], 2: ["diverged"]}
    assert "RuntimeError: this seed breaks" in out
    failed = trials[trials.status == "failed"].trial_id.iloc[0]
    assert 'raise RuntimeError("this seed breaks")' in (place.results / "trials" / failed / "rank0.log").read_text()
    assert place.run("sweep=traced", "trainable.breaks=1", "trainable.diverges=2")[0] == 1
    assert len(place.ran()) == 12
    place.run("sweep=traced", "trainable.breaks=1", "trainable.diverges=2", "rerun=failed")
    assert len(place.ran()) == 16


def test_a_diverged_trial_is_a_result(place):
    assert place.run("sweep=traced", "trainable.diverges=2")[0] == 0


def test_more_gpus_than_there_are_is_a_row_and_no_error(place):
    status, out, _ = place.run("sweep=traced", "sweep.axes.gpus=[1,64]", "sweep.axes.seed=[0]")
    assert status == 0 and len(place.ran()) == 4
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
        (
            ["sweep=batch_scaling", "data=npz", "data.path=none.npz", "model.name=resnet20", "optimizer.name=sdg"],
            [
                "there is no file ",
                "/none.npz: set data.path",
                "model 'resnet20' is not one of",
                "optimizer 'sdg' is not",
            ],
        ),
        (["sweep=batch_scaling", "data=npz", "model=torchvision"], ["data.path is not set", "model.arch is not set"]),
        (["sweep=batch_scaling", "trainable=function"], ["trainable._target_ is not set: package.module:function"]),
        (["sweep=batch_scaling", "trainable=command", "trainable.argv=trainx"], ["there is no program 'trainx'"]),
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
    assert not place.ran() and not (place.folder / "results").exists()


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


def test_of_several_sweeps_all_are_refused_or_none(place):
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=1,-1,2,nine", "--multirun")
    assert status == 2 and not place.ran() and not (place.folder / "results").exists()
    told = err.splitlines()
    assert any(line.startswith("with budget.epochs=-1: ") for line in told), err
    assert any(line.startswith("with budget.epochs=nine: ") for line in told), err
    assert any(
        "with budget.epochs=2: its results would go where those with budget.epochs=1 go" in line for line in told
    )
    assert not (place.folder / "multirun").exists()


def test_several_sweeps_in_folders_of_their_own(place):
    folders = "results_dir=results/${hydra:job.num}"
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=1,2", folders, "--multirun")
    assert status == 0, err
    assert len(list((place.folder / "results").glob("*/traced/tables/summary.csv"))) == 2 and len(place.ran()) == 8


EQUAL = ("sweep.axes.seed=[0]", "trainable.breaks=0", "sweep.axes.device_batch_size=[8,16,32,64]")


def test_where_all_cells_fail_alike_the_rest_waits_for_the_same_command(place):
    status, out, err = place.run("sweep=traced", *EQUAL, "equal_failures=3")
    assert status == 1, out + err
    began = len(place.ran())
    assert began == 5  # the first three, and a cell for each batch that was not among them
    assert "all that failed did so alike, whatever its axes: RuntimeError: this seed breaks" in out
    assert f"{8 - began} planned trials have not run; the same command continues" in out
    assert set(pd.read_csv(place.results / "tables/trials.csv").status) == {"failed"}
    status, out, _ = place.run("sweep=traced", *EQUAL, "equal_failures=3")
    assert status == 1 and len(place.ran()) == 8 and "whatever its axes" not in out
    status, out, _ = place.run("sweep=traced", *EQUAL, "equal_failures=null", "rerun=all")
    assert status == 1 and len(place.ran()) == 16


def test_a_conf_package_in_the_users_folder_does_not_stand_before_ours(place):
    (place.folder / "conf").mkdir()
    (place.folder / "conf/__init__.py").write_text("raise RuntimeError('not this one')")
    (place.folder / "conf/config.yaml").write_text("not: ours")
    assert place.run("sweep=traced", "mode=plan")[0] == 0


def test_another_configuration_is_refused_with_the_difference(place):
    place.run("sweep=traced", "sweep.axes.seed=[0]")
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=3")
    assert status == 2 and "config.budget.epochs: 10 → 3" in err and "allow_changed=true" in err
    assert len(place.ran()) == 4
    status, out, _ = place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=3", "allow_changed=true")
    assert status == 0 and len(set(place.ran())) == 8
    assert len(pd.read_csv(place.results / "tables/trials.csv")) == 4


@pytest.mark.slow
def test_what_only_failed_is_mended_and_run_again(place):
    status, out, _ = place.run("sweep=traced", "sweep.axes.seed=[1]", "trainable.breaks=1")
    assert status == 1 and len(place.ran()) == 4
    status, out, err = place.run("sweep=traced", "sweep.axes.seed=[1]")
    assert status == 0 and "all of it failed: it is left out" in out, err
    assert len(place.ran()) == 8 and pd.read_csv(place.results / "tables/trials.csv").status.tolist() == ["ok"] * 4
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[1]", "trainable.breaks=2")
    assert status == 2 and "config.trainable.breaks: None → 2" in err


@pytest.mark.slow
def test_other_trainable_code_is_other_trials(place):
    place.run("sweep=traced", "sweep.axes.seed=[0]")
    (place.folder / "traced_training.py").write_text(TRAINING + "\n# changed\n")
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0]")
    assert status == 2 and "source.traced_training:train: " in err


def test_a_second_driver_leaves_at_once_and_names_the_first(place):
    first = place.start("sweep=traced", HOLD_AFTER="0")
    wait_for(lambda: (place.results / "owner.json").exists(), first)
    status, _, err = place.run("sweep=traced")
    assert status == 2 and f"process {first.pid} on host" in err
    first.kill()
    first.communicate()
    assert place.run("sweep=traced", "sweep.axes.seed=[0]")[0] == 0


@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_a_signal_ends_the_sweep_and_the_same_command_continues(place, number, status):
    process = place.start("sweep=traced", HOLD_AFTER="2")
    wait_for(lambda: len(place.ran()) == 3, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    done = place.finished()
    assert done == place.ran()[:2] and "10 planned trials have not run" in out
    assert place.run("sweep=traced", "sweep.axes.seed=[0,1]")[0] == 0
    assert len(place.finished()) == 8 and not set(done) & set(place.ran()[3:])


def test_kill_9_at_any_moment_loses_no_finished_trial_and_runs_none_twice(place):
    moments = random.Random(7)
    again = []
    for _ in range(4):
        further = len(place.ran()) + moments.randint(1, 3)
        process = place.start("sweep=traced", "trainable.pause_s=0.05")
        wait_for(lambda: len(place.ran()) >= further, process)  # noqa: B023
        time.sleep(0.1 * moments.random())
        process.kill()
        process.communicate()
        finished = place.finished() if (place.results / "journal.jsonl").exists() else []
        again.append((set(finished), len(place.ran())))
    assert place.run("sweep=traced", "trainable.pause_s=0.05")[0] == 0
    assert len(place.finished()) == 12 == len(set(place.finished()))
    for finished, executions in again:
        assert not finished & set(place.ran()[executions:])


@pytest.mark.slow
def test_a_sweep_continued_on_other_hardware_asks_first(place):
    assert place.run("sweep=traced", "sweep.axes.seed=[0]")[0] == 0
    journal = place.results / "journal.jsonl"
    records = replay(journal).records
    taken_up = {**records[0].value, "hardware": {"cpu": "another CPU"}}
    journal.write_bytes(b"".join(encode(r.kind, taken_up if r is records[0] else r.value) + b"\n" for r in records))
    assert place.run("sweep=traced", "sweep.axes.seed=[0]")[0] == 0  # nothing to run
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0,1]")
    assert status == 2 and "cpu: 'another CPU' → " in err and "allow_changed=true" in err
    assert place.run("sweep=traced", "sweep.axes.seed=[0,1]", "allow_changed=true")[0] == 0
    assert len(place.ran()) == 8 == len(set(place.ran()))
