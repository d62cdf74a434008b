import pytest

from orchestrator.config.content_hashes import Versions
from orchestrator.config.trial_setup import setup
from tests.unit.orchestrator.config.resolved import LAPTOP, SERVER, config


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
