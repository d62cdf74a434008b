"""Test functions that use a framework, in real gangs of one and two ranks: examples/frameworks/training.py."""

import importlib.util
import sys
from pathlib import Path

import pytest

from orchestrator import run_sweep
from tests.unit.trainables.ranks import Processes, fields_of, rendezvous, request

FOLDER = Path(__file__).parents[2] / "examples/frameworks"
FRAMEWORKS = ["ddp", "fsdp2", "with_accelerate", "with_lightning"]
PACKAGES = {"with_accelerate": "accelerate", "with_lightning": "lightning"}


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.filterwarnings("default")
def test_all_ranks_train_one_model(folder, monkeypatch):
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


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_lightning_ranks_stop_together():
    if not importlib.util.find_spec("lightning"):
        pytest.skip("lightning is not installed")
    gang = {"shares": (32, 32), "rendezvous": rendezvous(), "config": {"budget": {"epochs": 5}}}
    asked = [request("training:with_lightning", rank=rank, **gang) for rank in (0, 1)]
    pair = Processes(2)
    try:
        answers = pair.call(asked_to_stop_on_rank_1, *((rank_request,) for rank_request in asked))
    finally:
        pair.close()
    assert [answer["status"] for answer in answers] == ["ok", "ok"], answers
    assert [answer["metrics"]["epochs"] for answer in answers] == [2, 2]


def asked_to_stop_on_rank_1(asked):
    """Run a rank; rank 1 is told to stop in its second epoch, rank 0 is not."""
    sys.path.insert(0, str(FOLDER))
    from trainables import rank

    looks = iter([False, True, True, True, True])
    return fields_of(rank.run(asked, lambda row: None, lambda: asked.rank == 1 and next(looks)))
