import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainables.ranks import CONFIG
from trainables.supervised.settings import errors, remarks

GROWS = {"name": "increase_batch", "milestones": [0.5], "gamma": 0.1}


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({}, []),
        ({"schedule": GROWS, "budget": {"epochs": 1, "steps": None}}, []),
        ({"trainable": {"compile": "fast"}}, ["trainable.compile='fast' is not one of off, default, max-autotune"]),
        ({"trainable": {"precision": "fp61"}}, ["trainable.precision='fp61' is not one of fp32, tf32, bf16"]),
        ({"trainable": {"val_fraction": "much"}}, ["a value has the wrong type: '<=' not supported"]),
        ({"trainable": {"target_accuracy": 93}}, ["trainable.target_accuracy=93 is not a share of 1"]),
        ({"schedule": GROWS | {"gamma": 0.3}}, ["schedule: schedule.gamma=0.3 multiplies no batch by a whole number"]),
        ({"schedule": {"name": "step", "milestones": [0.5, 80]}}, ["schedule: milestones [80] are not shares"]),
        ({"schedule": {"name": "step", "milestones": 0.5}}, ["schedule: milestones 0.5 are not a list"]),
        ({"schedule": {"name": "onecycle", "peak": 1.0}}, ["schedule: peak 1.0 is not a share"]),
        ({"schedule": {"name": "cosine", "last": 0}}, ["schedule 'cosine' has no key last; its keys are: final"]),
        ({"schedule": {"name": "mypackage.schedules:saw", "teeth": 3}}, []),
        ({"model": {"name": "resnet20"}}, ["model 'resnet20' is not one of small_cnn, "]),
        (
            {"optimizer": {"name": "sdg", "lr": 0.1}, "data": {}},
            ["data.name is not set", "optimizer 'sdg' is not one of"],
        ),
        ({"model": {"name": "mypackage.models:build"}}, []),
        (
            {"model": {"name": "unet"}, "data": {"name": "digits"}},
            ["model 'unet' predicts a label for every pixel, but data 'd"],
        ),
        (
            {"model": {"name": "mlp"}, "data": {"name": "synthetic", "dense": True}},
            ["predicts one label per image, but data 'syn"],
        ),
        ({"model": {"name": "unet"}, "data": {"name": "synthetic", "dense": True}}, []),
        ({"model": {"name": "unet"}, "data": {"name": "mypackage.data:Mine"}}, []),
        ({"data": CONFIG["data"] | {"subset": {"train": 64, "test": None, "seed": 0}}}, []),
        (
            {"data": CONFIG["data"] | {"subset": {"train": "lots", "test": 0, "seed": 1.5}}},
            ["data.subset.train must be a whole number of at least 1, not 'lots'", "data.subset.test", "of at least 0"],
        ),
        ({"data": {"name": "mine:Data", "subset": 64}}, ["data.subset must be {train: …, test: …, seed: …}"]),
        ({"data": CONFIG["data"] | {"mean": [0.5], "std": None}}, []),
        ({"data": CONFIG["data"] | {"mean": 0.5, "std": ["a"]}}, ["data.mean must be null or a list", "data.std must"]),
        ({"data": CONFIG["data"] | {"mean": [-0.5], "std": [0.2, 0]}}, ["data.std must be above 0 for each channel"]),
        ({"trainable": CONFIG["trainable"] | {"loader": {"workers": 0, "prefetch": 2}}}, []),
        ({"trainable": CONFIG["trainable"] | {"loader": {"workers": True}}}, ["trainable.loader.workers must be a"]),
        ({"trainable": CONFIG["trainable"] | {"loader": 5}}, ["trainable.loader must be a section with workers"]),
        (
            {"trainable": CONFIG["trainable"] | {"loader": {"workers": -1, "prefetch": 0}}},
            ["trainable.loader.workers must be a whole number of at least 0", "trainable.loader.prefetch must be"],
        ),
        ({"schedule": GROWS}, ["schedule=increase_batch needs budget.epochs or budget.samples, not budget.steps"]),
    ],
)
def test_errors_are_told(sections: dict[str, Any], told: list[str]) -> None:
    found = list(errors(CONFIG | sections))
    assert len(found) == len(told) and all(one in other for one, other in zip(told, found, strict=True))


def test_data_must_be_where_trials_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = CONFIG | {"data": {"name": "npz", "path": "/nowhere/mine.npz"}, "mode": "run"}
    assert [told.partition(":")[0] for told in errors(config)] == ["data 'npz'"]
    assert list(errors(config | {"mode": "plan"})) == [] == list(remarks(config))
    (told,) = remarks(config | {"mode": "plan"})
    assert told.startswith("data 'npz': there is no file") and told.endswith("mode=run would refuse that)")
    (told,) = remarks(config | {"cluster": {"address": "auto"}})
    assert told.endswith("the nodes need it)")
    assert list(errors(config | {"data": None})) == ["data.name is not set"]
    assert list(errors(config | {"cluster": {"address": "auto"}})) == []
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert list(errors(config)) == []


def test_looking_imports_no_torch() -> None:
    code = "import sys, trainables.supervised.settings; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


OWN = """
def net(input_shape, num_classes, width=4): pass
def saw(progress, teeth): pass
class Slow:
    def __init__(self, params, lr, drag): pass
"""


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"model": {"name": "own_code:net", "width": 8, "batch_norm": "replica"}}, []),
        (
            {"model": {"name": "own_code:net", "hidden": [16]}},
            ["model 'own_code:net' has no key hidden; its keys are: width; left out by ~model.hidden"],
        ),
        ({"optimizer": {"name": "own_code:Slow", "lr": 0.1, "drag": 1}}, []),
        ({"optimizer": {"name": "own_code:Slow", "lr": 0.1}}, ["optimizer 'own_code:Slow' needs a value for drag"]),
        ({"schedule": {"name": "own_code:saw", "teeth": 3}}, []),
        ({"schedule": {"name": "own_code:saw", "gamma": 3}}, ["schedule 'own_code:saw' has no key gamma"]),
    ],
)
def test_keys_that_ones_own_code_does_not_take_are_told_before_it_is_imported(
    sections: dict[str, Any], told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_code.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = list(errors(CONFIG | sections))
    assert len(found) == len(told) and all(line in each for line, each in zip(told, found, strict=True))
    assert "own_code" not in sys.modules
