"""Test refused requests: nothing is started, written or changed."""

import re

import pandas as pd
import pytest

from orchestrator.store.journal import encode, replay
from tests.drivers.place import TRAINING


def test_several_sweeps_are_refused_together(place):
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=1,-1,2,nine", "--multirun")
    assert status == 2 and not place.ran() and not (place.folder / "results").exists()
    told = err.splitlines()
    assert any(line.startswith("with budget.epochs=-1: ") for line in told), err
    assert any(line.startswith("with budget.epochs=nine: ") for line in told), err
    assert any("budget.epochs=2" in line and "budget.epochs=1" in line for line in told)
    assert not (place.folder / "multirun").exists()


@pytest.mark.slow
def test_another_config_is_refused_with_its_differences(place):
    place.run("sweep=traced", "sweep.axes.seed=[0]")
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=3")
    assert status == 2 and "config.budget.epochs: 10 → 3" in err and "allow_changed=true" in err
    assert len(place.ran()) == 4
    (name,) = re.findall(r"sweep\.name=\w+", err)
    assert place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=3", name)[0] == 0
    assert len(place.ran()) == 8
    status, out, _ = place.run("sweep=traced", "sweep.axes.seed=[0]", "budget.epochs=3", "allow_changed=true")
    assert status == 0 and len(place.ran()) == 12
    assert len(pd.read_csv(place.results / "tables/trials.csv")) == 4


@pytest.mark.slow
def test_changed_training_code_makes_new_trials(place):
    place.run("sweep=traced", "sweep.axes.seed=[0]")
    (place.folder / "traced_training.py").write_text(TRAINING + "\n# changed\n")
    status, _, err = place.run("sweep=traced", "sweep.axes.seed=[0]")
    assert status == 2 and "source.traced_training:train: " in err


@pytest.mark.slow
def test_other_hardware_needs_permission(place):
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
