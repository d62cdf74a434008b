import pandas as pd
import pytest

from orchestrator.text.cell_labels import cell_label, gpus_in_words, varying

CELL = {"gpus": 2, "device": "NVIDIA H200", "lr_rule": "linear", "device_batch_size": 256, "global_batch_size": 512}


@pytest.mark.parametrize(
    ("fields", "further", "label"),
    [
        ({}, [], "2×256 linear"),
        ({"gpus": 1.0, "device_batch_size": 256.0}, [], "1×256 linear"),
        ({"gpus": 0.25, "lr_rule": "none"}, [], "0.25×256 none"),
        ({}, ["device"], "2×256 linear, NVIDIA H200"),
        (
            {"model": "mlp", "model.width": 8, "trainable.compile": "on"},
            ["model", "model.width", "trainable.compile"],
            "2×256 linear, mlp, width=8, compile=on",
        ),
        (
            {"data.seed": 3, "trainable.lr": 0.3},
            ["data.seed", "trainable.lr"],
            "2×256 linear, data.seed=3, trainable.lr=0.3",
        ),
        ({"axes.strategy": "ddp"}, ["axes.strategy"], "2×256 linear, ddp"),
        ({"a.width": 1, "b.width": 2}, ["a.width", "b.width"], "2×256 linear, a.width=1, b.width=2"),
        (
            {"lr_multiplier": 0.5, "axes.note": None},
            ["lr_multiplier", "axes.note"],
            "2×256 linear, lr_multiplier=0.5",
        ),
        ({"axes.note": "null"}, ["axes.note"], "2×256 linear"),  # as `Cell.further` has it
    ],
)
def test_cell_label_holds_gpus_batch_rule_and_axes(fields, further, label):
    assert cell_label(CELL | fields, further) == label


def test_gpus_in_words_counts_gpus_or_processes():
    assert [gpus_in_words(1), gpus_in_words(0.5), gpus_in_words(2, on_cpu=True)] == ["1 GPU", "0.5 GPUs", "2 processes"]


def test_labels_leave_out_resources_that_follow_from_the_gpus():
    axes = {
        "resources.timing": ["shared", "device", "device"],
        "trainable.warmup": [1, 2, 2],
        "resources.cpus": [2, 2, 4],
    }
    cells = pd.DataFrame({"gpus": [0.5, 1, 1], "device": "cuda", "lr_multiplier": 1.0, **axes})
    assert varying(cells) == ["trainable.warmup", "resources.cpus"]
