"""Test the command line with real processes, on the in-process back end, with a trainable that counts its runs."""

import json

import pandas as pd
import pytest


@pytest.mark.slow
def test_a_finished_sweep_runs_nothing_again(place):
    (place.folder / "conf").mkdir()  # which does not shadow the shipped one
    (place.folder / "conf/__init__.py").write_text("raise RuntimeError('not this one')")
    (place.folder / "conf/config.yaml").write_text("not: ours")
    status, out, err = place.run("sweep=traced", "mode=plan", "format=json")
    assert (status, err) == (0, "") and len(json.loads(out)["trials"]) == 12
    assert not place.ran() and not (place.folder / "results").exists()

    status, out, err = place.run("sweep=traced")
    assert status == 0, out + err
    assert len(place.ran()) == 12 == len(set(place.ran()))
    summary = pd.read_csv(place.results / "tables/summary.csv")
    assert len(summary) == 4 and (summary.n_ok == 3).all() and (summary.status == "ok").all()
    assert len(list((place.results / "trials").iterdir())) == 12

    before = (place.results / "tables/summary.csv").read_text()
    for mode, told in (("run", "12 of 12 trials"), ("report", "")):
        (place.results / "tables/summary.csv").unlink()
        status, out, err = place.run("sweep=traced", f"mode={mode}")
        assert status == 0 and told in out, err
        assert len(place.ran()) == 12 and (place.results / "tables/summary.csv").read_text() == before


@pytest.mark.slow
def test_any_config_key_can_be_an_axis(place):
    status, out, err = place.run(
        "sweep=traced", 'sweep.axes."trainable.lr"=[0.1,0.2]', "sweep.axes.seed='range(0,3)'", "sweep.axes.lr_rule=none"
    )
    assert status == 0, err
    summary = pd.read_csv(place.results / "tables/summary.csv")
    assert sorted(summary["trainable.lr"].unique()) == [0.1, 0.2] and (summary.n_ok == 3).all()


@pytest.mark.slow
def test_multirun_sweeps_have_separate_folders(place):
    folders = "results_dir=results/${hydra:job.num}"
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=1,2", folders, "--multirun")
    assert status == 0, err
    assert len(list((place.folder / "results").glob("*/traced/tables/summary.csv"))) == 2 and len(place.ran()) == 8
