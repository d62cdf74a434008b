"""Test trials that fail, diverge or do not fit: their rows in the tables, and which trials run again."""

import shutil

import pandas as pd
import pytest

from tests.drivers.place import SMALL, wait_for

CELL = ("sweep.axes.device_batch_size=[8]", "sweep.axes.lr_rule=[none]")


def test_failures_are_rows_and_rerun_is_explicit(place):
    sweep = ("sweep=traced", *CELL, "trainable.breaks=1", "trainable.diverges=2")
    status, out, _ = place.run(*sweep)
    assert status == 1
    trials = pd.read_csv(place.results / "tables/trials.csv")
    assert trials.groupby("seed").status.unique().map(list).to_dict() == {0: ["ok"], 1: ["failed"], 2: ["diverged"]}
    assert "RuntimeError: this seed breaks" in out and "rerun=failed" in out
    failed = trials[trials.status == "failed"].trial_id.iloc[0]
    assert 'raise RuntimeError("this seed breaks")' in (place.results / "trials" / failed / "rank0.log").read_text()
    assert place.run(*sweep)[0] == 1
    assert len(place.ran()) == 3
    place.run(*sweep, "rerun=failed")
    assert len(place.ran()) == 4


@pytest.mark.slow
def test_rerun_repeats_only_selected_trials(place):
    narrow = ("sweep=traced", "sweep.axes.gpus=[1]", "sweep.axes.seed=[0,1]")
    assert place.run(*narrow)[0] == 0
    first = pd.read_csv(place.results / "tables/trials.csv")
    one = first[first.seed == 0].iloc[0]
    status, out, err = place.run(*narrow, f"rerun=[{one.trial_id[:6]},{{seed:1}}]", "sweep.budget.gpu_hours=0")
    after = pd.read_csv(place.results / "tables/trials.csv")
    assert status == 0 and len(place.ran()) == len(first), err
    assert set(after.status) == {"ok"}
    assert after.note.str.contains("not run again").sum() == 1 + (first.seed == 1).sum()
    status, out, err = place.run(*narrow, f"rerun=[{one.trial_id[:6]},{{seed:1}}]")
    after = pd.read_csv(place.results / "tables/trials.csv").set_index("trial_id")
    assert status == 0 and one.trial_id[:8] in out, err
    assert after.attempt.to_dict() == {
        row.trial_id: 1 + (row.seed == 1 or row.trial_id == one.trial_id) for row in first.itertuples()
    }
    assert place.run(*narrow, "mode=verify")[0] == 0
    assert "0123456789" in place.run(*narrow, "rerun=[0123456789]")[2]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["results/traced", "results/traced/journal.jsonl", "results/traced/trials"])
def test_results_that_disappear_end_the_sweep(place, what):
    started = place.start("sweep=traced", *SMALL, "trainable.pause_s=2")
    wait_for(lambda: place.finished(), started)
    shutil.move(place.folder / what, place.folder / "moved")
    out, err = started.communicate()
    assert started.returncode == 1 and "tables:" not in out
    assert len(err.splitlines()) == 1 and "Traceback" not in err
    assert not (place.folder / what).exists() and len(place.ran("done")) < 4


EQUAL = ("sweep.axes.seed=[0]", "trainable.breaks=0", "sweep.axes.device_batch_size=[8,16,32,64]")


@pytest.mark.slow
def test_a_systematic_failure_leaves_the_rest_for_later(place):
    status, out, err = place.run("sweep=traced", *EQUAL, "equal_failures=3")
    assert status == 1, out + err
    began = len(place.ran())
    assert began == 5  # the first three, and a cell for each batch that was not among them
    assert "RuntimeError: this seed breaks" in out
    assert f"{8 - began} planned trials" in out
    assert set(pd.read_csv(place.results / "tables/trials.csv").status) == {"failed"}
    status, out, _ = place.run("sweep=traced", *EQUAL, "equal_failures=3")
    assert status == 1 and len(place.ran()) == 8 and "whatever their axes" not in out
    status, out, _ = place.run("sweep=traced", *EQUAL, "equal_failures=null", "rerun=all")
    assert status == 1 and len(place.ran()) == 16


@pytest.mark.slow
def test_a_repaired_sweep_runs_again(place):
    status, out, _ = place.run("sweep=traced", "sweep.axes.seed=[1]", "trainable.breaks=1")
    assert status == 1 and len(place.ran()) == 4
    status, out, err = place.run("sweep=traced", "sweep.axes.seed=[1]")
    assert status == 0 and "all failed" in out, err
    assert len(place.ran()) == 8 and pd.read_csv(place.results / "tables/trials.csv").status.tolist() == ["ok"] * 4
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[1]", "trainable.breaks=2")
    assert status == 2 and "config.trainable.breaks: None → 2" in err


def test_diverged_and_infeasible_trials_are_results(place):
    axes = ("sweep.axes.gpus=[1,64]", "sweep.axes.seed=[2]")
    status, out, _ = place.run("sweep=traced", *axes, "trainable.diverges=2")
    assert status == 1 and len(place.ran()) == 4
    statuses = pd.read_csv(place.results / "tables/summary.csv").groupby("gpus").status.unique()
    assert statuses.map(list).to_dict() == {1: ["diverged"], 64: ["infeasible"]}
    assert "needs 64 ranks" in out
