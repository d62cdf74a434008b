import pytest

from orchestrator.config.fingerprint import Versions
from orchestrator.config.setup import fingerprint, setup, with_gpus
from orchestrator.schedule.cluster import Node
from sweeps.identity import digest
from tests.unit.orchestrator.requests import shipped_config

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


def test_a_laptop_has_worker_processes_of_one_core_that_are_timed_alone():
    found = setup(config(), [LAPTOP], Versions())
    assert (found.device, found.cpus_per_worker, found.timing) == ("cpu", None, "exclusive")


def test_a_server_has_gpus_each_with_its_share_of_the_cores():
    found = setup(config(), [SERVER, LAPTOP], Versions())
    assert (found.device, found.cores_per_gpu, found.timing) == ("cuda", 16, "device")


def test_the_trainable_sees_its_own_sections_and_not_the_orchestrators():
    assert set(setup(config(), [LAPTOP], Versions()).config) == {"trainable", "model", "data", "optimizer", "budget"}


def test_data_are_where_the_user_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = setup(config(data={"name": "npz", "path": "mine.npz", "root": None}), [LAPTOP], Versions())
    assert found.config["data"] == {"name": "npz", "path": str(tmp_path / "mine.npz"), "root": None}
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = setup(config(data={"name": "cifar10", "root": "~/sets"}), [LAPTOP], Versions())
    assert found.config["data"]["root"] == str(tmp_path / "home/sets")


def test_code_that_keeps_its_optimizer_to_itself_says_so():
    given = config(optimizer=None)
    assert setup(given, [LAPTOP], Versions()).optimizer == {"name": "unknown"}


def test_a_missing_reference_is_told():
    given = config()
    given["trainable"]["lr"] = None
    with pytest.raises(ValueError, match="trainable.lr is not set"):
        setup(given, [LAPTOP], Versions())


def test_whoever_asks_for_a_type_of_gpu_asks_for_gpus():
    typed = config(cluster=shipped_config()["cluster"] | {"gpu_type": "H100"})
    found = setup(typed, [LAPTOP], Versions())
    assert (found.device, found.gpu_types) == ("cuda", ("H100",))
    assert with_gpus({"gpus": "auto"}, typed, [LAPTOP]) == {"gpus": [1]}
    assert setup(config(), [LAPTOP], Versions()).gpu_types == ()


@pytest.mark.parametrize(
    ("given", "nodes", "counts"),
    [
        (config(), [LAPTOP], [1, 2, 4]),
        (config(), [SERVER], [1, 2]),
        (config(), [SERVER, SERVER, SERVER], [1, 2, 4]),
        (resources(device="cpu"), [SERVER], [1, 2, 4, 8, 16, 32]),
        (resources(cpus_per_worker=2), [LAPTOP], [1, 2]),
        (resources(gpus_per_worker=0.25), [SERVER], [0.25]),
        (resources(gpus_per_worker=2), [SERVER, SERVER], [2, 4]),
    ],
)
def test_auto_counts_up_to_what_there_is(given, nodes, counts):
    assert with_gpus({"gpus": "auto", "seed": [0]}, given, nodes) == {"gpus": counts, "seed": [0]}


def test_counts_that_were_given_stay():
    assert with_gpus({"gpus": [8]}, config(), [LAPTOP]) == {"gpus": [8]}


def test_paths_and_what_does_not_train_are_no_part_of_the_identity():
    elsewhere = config(data={"name": "digits", "root": "/there"}, results_dir="/other", verbose=True)
    assert identified(elsewhere) == identified(config())
    others = [config(warmup_epochs=1), config(model={"name": "other"}), resources(timing="shared")]
    assert all(identified(other) != identified(config()) for other in others)


def test_code_of_the_users_own_identifies_wherever_the_config_names_it():
    given = config(model={"name": "trainables.models.classifiers:small_cnn"}, data={"name": "digits"})
    assert set(fingerprint(given, Versions())["source"]) == {
        "trainables.noop:train",
        "trainables.models.classifiers:small_cnn",
    }


def test_numbers_as_keys_are_what_the_journal_makes_of_them():
    given = config()
    given["trainable"]["weights"] = {0: 1.0}
    assert fingerprint(given, Versions())["config"]["trainable"]["weights"] == {"0": 1.0}


def identified(given):
    found = fingerprint(given, Versions())
    assert setup(given, [LAPTOP], Versions()).identity == {"fingerprint": digest(found), "device": "cpu"}
    return found
