"""Resolved configs, and nodes for their trials."""

from orchestrator.schedule.cluster import Node
from tests.unit.orchestrator.requests import shipped_config

LAPTOP = Node(name="laptop", cpus=6, gpus=0)


SERVER = Node(name="server", cpus=32, gpus=2, gpu_type="NVIDIA H200")


def config(**sections):
    given = shipped_config()
    given |= {
        "trainable": {"_target_": "trainables.noop:train", "lr": 0.1, "reference_batch_size": 32},
        "model": {"name": "cnn"},
        "data": {"name": "digits", "root": "/here"},
        "optimizer": {"name": "sgd"},
    }
    return given | sections


def resources(**changed):
    return config(resources=shipped_config()["resources"] | changed)
