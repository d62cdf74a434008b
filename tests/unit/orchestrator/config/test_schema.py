"""The schema agrees with the shipped config, and refuses other values with the key and the value."""

import pytest

from orchestrator.cli.modes import MODES, TEMPLATES, WITHOUT_SWEEP
from orchestrator.config.key_checks import group_errors, place_errors, structure_errors, unread_keys, value_errors
from orchestrator.config.schema import SCHEMA, value_at
from orchestrator.config.settings import AXES
from orchestrator.decision.recommendation import NO_OBJECTIVE
from orchestrator.trackers.tracking import KINDS
from sweeps.sweep import STANDARD_AXES
from tests.unit.orchestrator.requests import shipped_config, with_value

CONFIG = shipped_config()


def errors(config):
    return [*structure_errors(config), *value_errors(config, SCHEMA), *unread_keys(config)]


def leaves(config, prefix=""):
    for key, value in config.items():
        if isinstance(value, dict) and f"{prefix}{key}" not in SCHEMA:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def test_shipped_config_has_the_schemas_keys_in_order():
    own = {section: value for section, value in CONFIG.items() if section not in ("trainable", "hydra")}
    assert list(leaves(own)) == list(SCHEMA)


def test_shipped_defaults_are_allowed():
    assert errors(CONFIG) == []


def test_choices_are_those_that_are_implemented():
    assert set(SCHEMA["mode"].words) == {*MODES, *WITHOUT_SWEEP}
    assert SCHEMA["init.kind"].words == tuple(sorted(folder.name for folder in TEMPLATES.iterdir()))
    assert SCHEMA["report.objective"].words == ("time", "energy", "cost", NO_OBJECTIVE)
    assert {key.split(".")[1] for key in SCHEMA if key.startswith("tracker.")} == set(KINDS)
    assert list(AXES) == list(STANDARD_AXES)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hang_s", None), ("resources.cpus_per_worker", "auto"), ("results_dir", 2024), ("tracker.wandb.project", 7)],
)
def test_further_values_are_allowed(key, value):
    assert errors(with_value(CONFIG, key, value)) == []


@pytest.mark.parametrize(("section", "value"), [("resources", None), ("sweep.budget", 3), ("tracker.mlflow", [1])])
def test_value_in_place_of_a_section_is_one_error(section, value):
    (line,) = errors(with_value(CONFIG, section, value))
    assert line.startswith(section) and all(name in line for name in value_at(CONFIG, section))


OWN = {"_target_": "mine:train", "depth": 3}
COMMAND = {"_target_": "trainables.command.training:train", "argv": "python train.py --a {trainable.a} --w {model.w}"}
TRAINING = {"_target_": "trainables.supervised.training:train"}


@pytest.mark.parametrize(
    ("config", "unread"),
    [
        ({"budget": {"epoch": 3}, "augmentation": {"any": 1}}, ["budget.epoch"]),
        ({"budgets": {"epochs": 3}}, ["budgets"]),
        ({"trainable": OWN, "augmentation": {"any": 1}, "model": {"name": "mlp", "w": 1}}, []),
        ({"trainable": OWN, "budgets": {"epochs": 3}}, ["budgets"]),
        ({"trainable": TRAINING | {"amp": True, "precision": "fp32"}, "amp": True}, ["amp", "trainable.amp"]),
        ({"trainable": TRAINING | {"loader": {"workers": 1, "x": 1}}}, ["trainable.loader.x"]),
        ({"trainable": TRAINING, "model": {"name": "mlp", "hidden": [1], "w": 1}}, ["model.w"]),
        ({"trainable": TRAINING, "model": {"name": "mine:mlp", "w": 1}}, []),
        ({"trainable": TRAINING, "model": {"name": "hf", "config": {"attn": 1}, "lora": {"r": 1}}}, []),
        ({"trainable": COMMAND | {"a": 1, "b": 1, "env": {"X": 1}}, "model": {"name": "mlp", "w": 1}}, ["trainable.b"]),
    ],
)
def test_keys_that_nothing_reads(config, unread):
    assert list(unread_keys(config)) == unread


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"optimizer": {"name": "sgd", "momentum": "high"}}, ["optimizer.momentum"]),
        ({"optimizer": {"name": "sgd", "momentum": True}}, ["optimizer.momentum"]),
        ({"optimizer": {"name": "sgd", "momentum": 0, "nesterov": None, "lr": 0.1}}, []),
        (
            {"optimizer": {"name": "sgd", "momentum": 2, "weight_decay": -1}},
            ["optimizer.momentum", "optimizer.weight_decay"],
        ),
        ({"optimizer": {"name": "lars", "momentum": 1.0}}, ["optimizer.momentum"]),
        ({"optimizer": {"name": "sgd", "momentum": 0.0, "nesterov": True}}, ["optimizer.nesterov"]),
        ({"optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True}}, []),
        ({"optimizer": {"name": "adam", "betas": [0.9, 1], "eps": -1e-8}}, ["optimizer.betas", "optimizer.eps"]),
        ({"optimizer": {"name": "adamw", "betas": [0.9, "x"]}}, ["optimizer.betas"]),
        ({"optimizer": {"name": "adadelta", "rho": 1}}, ["optimizer.rho"]),
        ({"optimizer": {"name": "lars", "trust_coefficient": 0}}, ["optimizer.trust_coefficient"]),
        ({"optimizer": {"name": "mine.optim:Mine", "momentum": 2, "betas": [3]}}, []),
        ({"schedule": {"name": "step", "gamma": -0.1, "milestones": [0.5]}}, ["schedule.gamma"]),
        ({"schedule": {"name": "onecycle", "initial": 0, "final": -1}}, ["schedule.final"]),
        ({"data": {"name": "digits", "augment": {"flip": "no"}}}, ["data.augment.flip"]),
        ({"data": {"name": "digits", "augment": {"flip": 1}}}, ["data.augment.flip"]),
        ({"model": {"name": "mine.models:build", "width": "wide"}}, []),
        ({"model": {"name": "resnet18", "batch_norm": "ghost:32"}}, []),
        ({"model": {"name": ["mlp"]}, "data": "digits"}, []),
        ({"data": {"name": "digits", "augment": 5, "subset": [64]}}, ["data.augment", "data.subset"]),
        ({"data": {"name": "digits", "augment": None, "subset": None}}, []),
        ({"data": {"name": "npz", "path": 5, "root": None}}, ["data.path"]),
        ({"model": {"name": "small_cnn", "width": 0}}, ["model.width"]),
        ({"model": {"name": "small_cnn", "width": 1.5}}, ["model.width"]),
        ({"model": {"name": "mlp", "hidden": 128}}, ["model.hidden"]),
        ({"data": {"name": "digits", "augment": {"cutout": -1}}}, ["data.augment.cutout"]),
        ({"data": {"name": "digits", "augment": {"cutout": 0, "crop_padding": 4}}}, []),
        ({"trainable": {"lr": float("nan")}}, ["trainable.lr"]),
        ({"model": {"name": "mlp", "depth": float("-inf")}}, ["model.depth"]),
    ],
)
def test_values_fit_the_chosen_file_of_each_group(config, keys):
    lines = list(group_errors(config))
    assert len(lines) == len(keys)
    assert all(line.startswith((f"{key} ", f"{key}=")) for line, key in zip(lines, keys, strict=True))


@pytest.mark.parametrize("value", ["a\0b", "~nobody-such/x", "x" * 300, "y/" * 3000])
@pytest.mark.parametrize("key", ["results_dir", "forecast.prices", "compare.with", "tune.storage_path", "init.dir"])
def test_path_that_cannot_be_is_an_error(key, value):
    (line,) = place_errors(with_value(CONFIG, key, value))
    assert line.startswith(key) and len(line) < 200


@pytest.mark.parametrize("value", ["nowhere/x", "/dev/null/x", "~/x", "s3://bucket/" + "x" * 300, "", 5, None])
def test_path_that_may_be_is_no_error(value):
    assert list(place_errors(with_value(CONFIG, "results_dir", value))) == []
