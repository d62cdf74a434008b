import shutil
import sys

import pytest

from orchestrator.config.content_hashes import Versions
from orchestrator.config.fingerprint import fingerprint
from orchestrator.config.search_path import config_dir
from orchestrator.config.trial_setup import setup
from orchestrator.run.session import file_states
from orchestrator.store.history import History
from orchestrator.store.record import Kind, Record
from sweeps.identity import COMMAND, digest, identity
from sweeps.sweep import Sweep, trials
from tests.unit.orchestrator.config.resolved import LAPTOP, config, resources
from tests.unit.orchestrator.requests import with_value


def test_fingerprint_ignores_paths_and_display():
    elsewhere = config(data={"name": "digits", "root": "/there"}, results_dir="/other", verbose=True)
    assert identified(elsewhere) == identified(config())
    others = [config(warmup_epochs=1), config(model={"name": "other"}), resources(timing="shared")]
    assert all(identified(other) != identified(config()) for other in others)


def test_fingerprint_covers_own_code_anywhere_in_the_config():
    given = config(model={"name": "trainables.models.images:small_cnn"}, data={"name": "digits"})
    assert set(fingerprint(given, Versions())["source"]) == {
        "trainables.noop:train",
        "trainables.models.images:small_cnn",
    }


def trial_identity(given):
    return digest(identity(fingerprint(given, Versions())))


def test_new_key_at_its_default_makes_no_other_trial(tmp_path, monkeypatch):
    before = config()
    conf = tmp_path / "conf"
    shutil.copytree(config_dir(), conf)
    for file in ("trainable/noop.yaml", "optimizer/sgd.yaml"):
        (conf / file).write_text((conf / file).read_text() + "brand_new: {inside: 3}\n")
    new = {section: before[section] | {"brand_new": {"inside": 3}} for section in ("trainable", "optimizer")}
    unknown = trial_identity(before | new)
    monkeypatch.setattr("orchestrator.config.schema.config_dir", lambda: conf)
    assert trial_identity(before | new) == trial_identity(before) != unknown
    changed = {"optimizer": before["optimizer"] | {"brand_new": {"inside": 4}}}
    assert trial_identity(before | new | changed) != trial_identity(before)
    history = History([Record(kind=Kind.SWEEP, value={"fingerprint": fingerprint(before, Versions())})])
    assert history.changes(fingerprint(before | new, Versions())) == []
    assert len(history.changes(fingerprint(before | new | changed, Versions()))) == 1


@pytest.mark.parametrize(
    ("key", "value", "is_default"),
    [
        ("optimizer.momentum", 0.9, True),
        ("optimizer.momentum", 0.8, False),
        ("optimizer.nesterov", 0, False),
        ("budget.epochs", 10.0, True),
        ("budget.epochs", 11, False),
        ("resources.timing", "auto", True),
        ("resources.timing", "shared", False),
        ("model.name", "cnn", False),
        ("trainable._target_", "trainables.noop:train", False),
    ],
)
def test_fingerprint_names_the_keys_at_their_default(key, value, is_default):
    given = with_value(config(optimizer={"name": "sgd", "nesterov": False}), key, value)
    dotted = key if key.startswith("resources.") else f"config.{key}"
    assert (dotted in fingerprint(given, Versions())["defaults"]) is is_default


def test_fingerprint_has_text_keys():
    given = config()
    given["trainable"]["weights"] = {0: 1.0}
    assert fingerprint(given, Versions())["config"]["trainable"]["weights"] == {"0": 1.0}


@pytest.mark.parametrize("target", ["trainables.noop:train", COMMAND])
def test_own_function_may_have_the_keys_of_a_command(folder, target):
    (folder / "net.yaml").write_text("")
    given = config()
    given["trainable"] |= {"_target_": target, "argv": "train.py net.yaml", "source_dir": None}
    axes = {"gpus": [1], "device_batch_size": [8], "lr_rule": ["none"], "lr_multiplier": [1.0], "seed": [0]}
    [trial] = trials(Sweep(name="s", axes=axes), lambda point: setup(given, [LAPTOP], Versions()))
    is_command = target == COMMAND
    assert trial.settings["source_dir"] == (str(folder) if is_command else None)
    assert ("files" in fingerprint(given, Versions())["source"]) is is_command
    assert set(file_states(trial)) == ({"net.yaml"} if is_command else set())


def identified(given):
    given_fingerprint = fingerprint(given, Versions())
    assert setup(given, [LAPTOP], Versions()).identity == {
        "fingerprint": digest(identity(given_fingerprint)),
        "device": "cpu",
    }
    return given_fingerprint


def test_texts_with_colons_are_code_only_where_they_name_a_module_of_the_user(folder):
    (folder / "losses_of_mine.py").write_text("from torch.nn import L1Loss as focal\n")
    texts = {"ALLOC": "expandable_segments:True", "RUN": "json:x", "MAIN": "__main__:x"}
    trainable = {**config()["trainable"], "env": texts, "loss": "losses_of_mine:focal"}
    sys.path.insert(0, str(folder))
    try:
        source = fingerprint(config(trainable=trainable), Versions())["source"]
    finally:
        sys.path.remove(str(folder))
    assert source.keys() == {"trainables.noop:train", "losses_of_mine:focal"}
