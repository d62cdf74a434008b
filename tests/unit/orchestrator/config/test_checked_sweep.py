from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.config import checked_sweep
from orchestrator.config.checked_sweep import CheckedSweep
from orchestrator.config.compose import initialised
from orchestrator.config.content_hashes import Versions
from orchestrator.config.trial_setup import setup
from orchestrator.schedule.cluster import Node
from tests.unit.orchestrator.config.resolved import LAPTOP, SERVER, config, resources
from tests.unit.orchestrator.requests import shipped_config, unchecked


def axes_on(nodes, given, **axes):
    return CheckedSweep(request=SimpleNamespace(axes=axes), composition=SimpleNamespace(config=given)).axes(nodes)


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
