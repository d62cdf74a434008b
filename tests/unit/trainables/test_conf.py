"""The shipped configs name what there is, with the keys and defaults it has."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml

from trainables import data, models
from trainables.component_registry import DATA, MODELS, OPTIMIZERS, SCHEDULES, TEXTS
from trainables.inputs.augmentation import Augmentation
from trainables.optimizers import optimizers, schedules
from trainables.supervised.settings import TrainingSettings

CONF = Path(__file__).parents[3] / "conf"


def configs(group):
    """The configs of a group, without those that only change another one for a shipped sweep."""
    read = {path.stem: yaml.safe_load(path.read_text()) for path in (CONF / group).glob("*.yaml")}
    return {name: config for name, config in read.items() if "defaults" not in config}


@pytest.mark.parametrize(
    ("group", "families"), [("model", MODELS), ("data", DATA), ("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)]
)
def test_every_registered_name_has_a_config(group, families):
    named = {file: config["name"] for file, config in configs(group).items()}
    assert {name: named.get(name) for name in families} == {name: name for name in families}
    assert set(named.values()) == set(families)


@pytest.mark.parametrize("name", sorted(configs("model")))
def test_model_configs_build(name):
    if name == "hf":
        pytest.skip("needs a folder: tests/unit/trainables/models/test_transformer.py")
    config = configs("model")[name] | ({"arch": "resnet18"} if name == "torchvision" else {})
    with torch.device("meta"):
        models.build(config, input_shape=(3, 32, 32), num_classes=10)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_optimizer_configs_build(name):
    config = configs("optimizer")[name]
    optimizers.build(torch.nn.ModuleList([torch.nn.Linear(2, 2)]), config, lr=config["lr"])


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedule_configs_resolve(name):
    assert 0 <= schedules.resolve(configs("schedule")[name])(1, 2) <= 1


def test_the_training_loop_has_the_shipped_defaults():
    shipped, defaults = configs("trainable")["supervised"], asdict(TrainingSettings())
    common = shipped.keys() & defaults.keys() - {"loader"}  # its values have defaults, too
    assert {"window_s", "window_steps", "warmup_s", "precision"} <= common
    assert {key: shipped[key] for key in common} == {key: defaults[key] for key in common}


@pytest.mark.parametrize("name", sorted({*DATA} - {*TEXTS}))
def test_augmentation_configs_are_read(name):
    augmentation = Augmentation(**configs("data")[name]["augment"])
    assert augmentation == (Augmentation(crop_padding=4, flip=True) if name.startswith("cifar") else Augmentation())


@pytest.mark.parametrize("name", sorted(DATA))
def test_data_configs_load_or_name_their_files(name, folder):
    config = configs("data")[name] | ({"train_size": 10, "test_size": 10} if name == "synthetic" else {})
    if name in ("digits", "synthetic"):
        assert data.load(config).num_classes == 10  # type: ignore[union-attr]
    elif name == "text":
        assert data.load(config).vocabulary <= 256  # type: ignore[union-attr]
    else:
        with pytest.raises(data.DataError, match=r"^data '.*': (no|there is no) .*: "):
            data.load(config)
