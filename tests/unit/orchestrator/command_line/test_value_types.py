"""Values of another kind than the shipped ones, and numbers that are none."""

import pytest

from orchestrator.command_line.value_types import type_mistakes
from orchestrator.composition.search_path import config_dir


@pytest.mark.parametrize(
    ("config", "mistakes"),
    [
        ({"optimizer": {"name": "sgd", "momentum": "high"}}, ["optimizer.momentum must be a number, not 'high'"]),
        ({"optimizer": {"name": "sgd", "momentum": True}}, ["optimizer.momentum must be a number, not True"]),
        ({"optimizer": {"name": "sgd", "momentum": 1, "nesterov": None, "lr": 0.1}}, []),
        (
            {"data": {"name": "digits", "augment": {"flip": "no"}}},
            ["data.augment.flip must be true or false, not 'no'"],
        ),
        ({"data": {"name": "digits", "augment": {"flip": 1}}}, ["data.augment.flip must be true or false, not 1"]),
        ({"model": {"name": "mine.models:build", "width": "wide"}}, []),
        ({"model": {"name": "resnet18", "batch_norm": "ghost:32"}}, []),
        ({"model": {"name": ["mlp"]}, "data": "digits"}, []),
        ({"trainable": {"lr": float("nan")}}, ["trainable.lr must be a finite number, not nan"]),
        ({"model": {"name": "mlp", "depth": float("-inf")}}, ["model.depth must be a finite number, not -inf"]),
    ],
)
def test_a_line_for_each(config: dict[str, object], mistakes: list[str]) -> None:
    found = list(type_mistakes(config, config_dir()))
    assert [line[: len(mistake)] for line, mistake in zip(found, mistakes, strict=True)] == mistakes
