"""Values of another kind than the shipped ones, and numbers that are none."""

import pytest

from orchestrator.cli.schema import type_errors


@pytest.mark.parametrize(
    ("config", "errors"),
    [
        ({"optimizer": {"name": "sgd", "momentum": "high"}}, ["optimizer.momentum must be a number, not 'high'"]),
        ({"optimizer": {"name": "sgd", "momentum": True}}, ["optimizer.momentum must be a number, not True"]),
        ({"optimizer": {"name": "sgd", "momentum": 0, "nesterov": None, "lr": 0.1}}, []),
        (
            {"optimizer": {"name": "sgd", "momentum": 2, "weight_decay": -1}},
            [
                "optimizer.momentum must be a number of at least 0 and below 1, not 2",
                "optimizer.weight_decay must be a number of at least 0, not -1",
            ],
        ),
        (
            {"optimizer": {"name": "lars", "momentum": 1.0}},
            ["optimizer.momentum must be a number of at least 0 and be"],
        ),
        (
            {"optimizer": {"name": "sgd", "momentum": 0.0, "nesterov": True}},
            ["optimizer.nesterov=true needs a momentum"],
        ),
        ({"optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True}}, []),
        (
            {"optimizer": {"name": "adam", "betas": [0.9, 1], "eps": -1e-8}},
            [
                "optimizer.betas must be a list of numbers, each a number of at least 0 and below 1, not [0.9, 1]",
                "optimizer.eps must be a number of at least 0, not -1e-08",
            ],
        ),
        ({"optimizer": {"name": "adamw", "betas": [0.9, "x"]}}, ["optimizer.betas must be a list of numbers, each a"]),
        ({"optimizer": {"name": "adadelta", "rho": 1}}, ["optimizer.rho must be a number of at least 0 and below 1"]),
        ({"optimizer": {"name": "lars", "trust_coefficient": 0}}, ["optimizer.trust_coefficient must be a number abo"]),
        ({"optimizer": {"name": "mine.optim:Mine", "momentum": 2, "betas": [3]}}, []),  # who knows what it means there
        ({"schedule": {"name": "step", "gamma": -0.1, "milestones": [0.5]}}, ["schedule.gamma must be a number above"]),
        (
            {"schedule": {"name": "onecycle", "initial": 0, "final": -1}},
            ["schedule.final must be a number of at least"],
        ),
        (
            {"data": {"name": "digits", "augment": {"flip": "no"}}},
            ["data.augment.flip must be true or false, not 'no'"],
        ),
        ({"data": {"name": "digits", "augment": {"flip": 1}}}, ["data.augment.flip must be true or false, not 1"]),
        ({"model": {"name": "mine.models:build", "width": "wide"}}, []),
        ({"model": {"name": "resnet18", "batch_norm": "ghost:32"}}, []),
        ({"model": {"name": ["mlp"]}, "data": "digits"}, []),
        (
            {"data": {"name": "digits", "augment": 5, "subset": [64]}},
            ["data.augment must be a section with crop_padding, flip, cutout, not 5", "data.subset must be a section"],
        ),
        ({"data": {"name": "digits", "augment": None, "subset": None}}, []),  # neither the one nor the other
        ({"data": {"name": "npz", "path": 5, "root": None}}, ["data.path must be text, not 5"]),
        ({"model": {"name": "small_cnn", "width": 0}}, ["model.width must be a whole number of at least 1, not 0"]),
        ({"model": {"name": "small_cnn", "width": 1.5}}, ["model.width must be a whole number of at least 1, not 1.5"]),
        ({"model": {"name": "mlp", "hidden": 128}}, ["model.hidden must be a list, not 128"]),
        ({"data": {"name": "digits", "augment": {"cutout": -1}}}, ["data.augment.cutout must be a whole number of at"]),
        ({"data": {"name": "digits", "augment": {"cutout": 0, "crop_padding": 4}}}, []),
        ({"trainable": {"lr": float("nan")}}, ["trainable.lr must be a finite number, not nan"]),
        ({"model": {"name": "mlp", "depth": float("-inf")}}, ["model.depth must be a finite number, not -inf"]),
    ],
)
def test_a_line_for_each(config: dict[str, object], errors: list[str]) -> None:
    found = list(type_errors(config))
    assert [line[: len(message)] for line, message in zip(found, errors, strict=True)] == errors
