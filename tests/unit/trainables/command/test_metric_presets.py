"""Lines in the formats of well-known programs, whose sources `metric_presets.py` names, with made-up numbers."""

import json
from pathlib import Path

import pytest

from tests.unit.trainables.command.outputs import reading
from trainables.command.check import errors
from trainables.command.metric_presets import PRESETS
from trainables.command.settings import CommandSettings

LINES = json.loads((Path(__file__).parent / "recorded/presets.json").read_text())


@pytest.mark.parametrize("name", PRESETS)
def test_presets_read_their_programs(name):
    lines, expected = LINES[name].values()
    reader, metrics = reading(CommandSettings.of({"argv": "x", "metrics": name}))
    for line in lines:
        reader.line(line)
    figures = metrics.figures()
    assert {key: figures.get(key) for key in expected} == pytest.approx(expected)


def test_ultralytics_classifiers_have_the_accuracy_of_the_likeliest_class():
    reader, metrics = reading(CommandSettings.of({"argv": "x", "metrics": "ultralytics"}))
    reader.line("                   all      0.531          1")
    assert metrics.figures()["val_accuracy"] == 0.531


def test_users_pattern_precedes_the_presets():
    settings = CommandSettings.of({"argv": "x", "metrics": "timm", "epoch_pattern": "mine", "step_pattern": None})
    assert settings.epoch_pattern == "mine" and settings.step_pattern == PRESETS["timm"].step_pattern


def test_an_unknown_preset_is_an_error():
    assert any("llm-foundry" in error for error in errors({"trainable": {"argv": "true", "metrics": "tim"}}))
