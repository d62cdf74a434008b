"""Functions with a framework inside, in real gangs of one and of two ranks: examples/frameworks/training.py."""

import importlib.util
from pathlib import Path

import pytest

from orchestrator import run_sweep

FOLDER = Path(__file__).parents[2] / "examples/frameworks"
FRAMEWORKS = ["ddp", "fsdp2", "with_accelerate", "with_lightning"]
PACKAGES = {"with_accelerate": "accelerate", "with_lightning": "lightning"}


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.filterwarnings("default")
def test_each_trains_one_model_with_all_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)
    there = [name for name in FRAMEWORKS if importlib.util.find_spec(PACKAGES.get(name, "torch"))]
    results = run_sweep(
        {
            "trainable": {"_target_": "training:ddp", "lr": 0.1, "reference_batch_size": 64, "window_s": 0.2},
            "sweep.name": "frameworks",
            "sweep.axes": {"gpus": [1, 2], "global_batch_size": [64], "seed": [0]},
            "budget": {"epochs": 3},
            "resources.device": "cpu",
            "report.html": False,
        },
        f'sweep.axes."trainable._target_"=[{",".join(f"training:{name}" for name in there)}]',
        "trusted_modules=[training]",
    )
    trials = results.trials.assign(framework=results.trials["trainable._target_"].str.partition(":")[2])
    assert (trials.status == "ok").all(), trials[["framework", "gpus", "status", "note"]].to_string()
    assert len(trials) == 2 * len(there) and (trials.accuracy > 0.5).all()
    assert (results.curves().groupby("trial_id").size() == 3).all()
    for name, of_it in trials.set_index("gpus").groupby("framework"):
        if name != "with_lightning":  # its loader shuffles in its own way
            assert of_it.weights[1] == pytest.approx(of_it.weights[2], abs=1e-3), name
        if name.startswith("with_"):
            assert of_it.world_size_seen.to_dict() == {1: 1, 2: 2}, name
    if len(there) < len(FRAMEWORKS):
        pytest.skip(f"not installed, and so not tried: {sorted(set(FRAMEWORKS) - set(there))}")
