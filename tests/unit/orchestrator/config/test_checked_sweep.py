import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.config import checked_sweep
from orchestrator.config.checked_sweep import CheckedSweep, fingerprint, setup
from orchestrator.config.compose import initialised
from orchestrator.config.content_hashes import Versions
from orchestrator.config.search_path import config_dir
from orchestrator.run.session import file_states
from orchestrator.schedule.cluster import Node
from orchestrator.store.history import History
from orchestrator.store.record import Kind, Record
from sweeps.identity import COMMAND, digest, identity
from sweeps.sweep import Sweep, trials
from tests.unit.orchestrator.requests import shipped_config, unchecked, with_value

LAPTOP = Node(name="laptop", cpus=6, gpus=0)
SERVER = Node(name="server", cpus=32, gpus=2, gpu_type="NVIDIA H200")


def config(**sections):
    given = shipped_config()
    given["sweep"]["identity_ignores"] = ["data.root"]
    given |= {
        "trainable": {"_target_": "trainables.noop:train", "lr": 0.1, "reference_batch_size": 32},
        "model": {"name": "cnn"},
        "data": {"name": "digits", "root": "/here"},
        "optimizer": {"name": "sgd"},
    }
    return given | sections


def resources(**changed):
    return config(resources=shipped_config()["resources"] | changed)


def axes_on(nodes, given, **axes):
    request = SimpleNamespace(sweep=SimpleNamespace(axes=axes))
    return CheckedSweep(request=request, composition=SimpleNamespace(config=given)).axes(nodes)


def test_machine_without_gpus_times_exclusively():
    trial_setup = setup(config(), [LAPTOP], Versions())
    assert (trial_setup.device, trial_setup.cpus_per_worker, trial_setup.timing) == ("cpu", None, "exclusive")


def test_gpus_share_the_cores_of_their_node():
    trial_setup = setup(config(), [SERVER, LAPTOP], Versions())
    assert (trial_setup.device, trial_setup.cores_per_gpu, trial_setup.timing) == ("cuda", 16, "device")


def test_trainable_sees_only_its_own_sections():
    assert set(setup(config(), [LAPTOP], Versions()).config) == {"trainable", "model", "data", "optimizer", "budget"}


def test_data_paths_are_made_absolute(folder, monkeypatch):
    trial_setup = setup(config(data={"name": "npz", "path": "mine.npz", "root": None}), [LAPTOP], Versions())
    assert trial_setup.config["data"] == {"name": "npz", "path": str(folder / "mine.npz"), "root": None}
    monkeypatch.setenv("HOME", str(folder / "home"))
    trial_setup = setup(config(data={"name": "cifar10", "root": "~/sets"}), [LAPTOP], Versions())
    assert trial_setup.config["data"]["root"] == str(folder / "home/sets")


def test_optimizer_is_unknown_without_a_section():
    given = config(optimizer=None)
    assert setup(given, [LAPTOP], Versions()).optimizer == {"name": "unknown"}


def test_missing_reference_is_an_error():
    given = config()
    given["trainable"]["lr"] = None
    with pytest.raises(ValueError, match="trainable.lr is not set"):
        setup(given, [LAPTOP], Versions())


def test_gpu_type_implies_cuda():
    typed = config(cluster=shipped_config()["cluster"] | {"gpu_type": "H100"})
    trial_setup = setup(typed, [LAPTOP], Versions())
    assert (trial_setup.device, trial_setup.gpu_types) == ("cuda", ("H100",))
    assert axes_on([LAPTOP], typed, gpus="auto") == {"gpus": [1]}
    assert axes_on([LAPTOP], config(), gpus=[8]) == {"gpus": [8]}
    assert setup(config(), [LAPTOP], Versions()).gpu_types == ()


def test_only_nodes_of_the_gpu_type_count():
    small = Node(name="small", cpus=4, gpus=4, gpu_type="Tesla T4")
    typed = config(cluster=shipped_config()["cluster"] | {"gpu_type": "H200"})
    assert setup(typed, [SERVER, small], Versions()).cores_per_gpu == 16
    assert axes_on([SERVER, small], typed, gpus="auto") == {"gpus": [1, 2]}


@pytest.mark.parametrize(
    ("given", "nodes", "counts"),
    [
        (config(), [LAPTOP], [1, 2, 4]),
        (config(), [SERVER], [1, 2]),
        (config(), [SERVER, SERVER, SERVER], [1, 2, 4]),
        (resources(device="cpu"), [SERVER], [1, 2, 4, 8, 16, 32]),
        (resources(cpus_per_worker=2), [LAPTOP], [1, 2]),
    ],
)
def test_auto_gpus_doubles_up_to_the_nodes(given, nodes, counts):
    assert axes_on(nodes, given, gpus="auto", seed=[0]) == {"gpus": counts, "seed": [0]}


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


def test_grid_is_expanded_once_for_nodes_of_one_kind(monkeypatch):
    expansions = []
    expand = checked_sweep.trials
    monkeypatch.setattr(checked_sweep, "trials", lambda sweep, of: expansions.append(sweep) or expand(sweep, of))
    with initialised():
        grid = unchecked("sweep=batch_scaling", "trainable=noop")
        planned = grid.trials([LAPTOP])
        same = grid.trials([Node(name="by Ray", cpus=LAPTOP.cpus, gpus=0, node_id="1f")])
        assert same is planned and len(expansions) == 1
        assert grid.trials([SERVER]) is not planned and len(expansions) > 1

        typed = unchecked("sweep=batch_scaling", "trainable=noop", "cluster.gpu_type=H200")
        others = [replace(SERVER, gpu_type="Tesla T4")]
        assert [{trial.gpus for trial in typed.trials(nodes)} for nodes in (others, [SERVER])] == [{1}, {1, 2}]


def test_texts_with_colons_are_code_only_where_they_name_a_module_of_the_user(folder):
    (folder / "losses_of_mine.py").write_text("from torch.nn import L1Loss as focal\n")
    texts = {
        "ALLOC": "expandable_segments:True",
        "RUN": "json:x",
        "MAIN": "__main__:x",
    }
    trainable = {**config()["trainable"], "env": texts, "loss": "losses_of_mine:focal"}
    sys.path.insert(0, str(folder))
    try:
        source = fingerprint(config(trainable=trainable), Versions())["source"]
    finally:
        sys.path.remove(str(folder))
    assert source.keys() == {"trainables.noop:train", "losses_of_mine:focal"}
