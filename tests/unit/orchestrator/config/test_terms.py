from types import SimpleNamespace
from typing import Any

from orchestrator.config.terms import Terms

REQUEST: Any = SimpleNamespace(
    objective="cost",
    margin=0.02,
    target_accuracy=0.9,
    price_per_gpu_hour=2.0,
    axes={"gpus": [1, 2], "optimizer.lr": [0.1, 0.2], "never.ran": [1, 2], "seed": [0, 1]},
    exclude=[{"gpus": 2, "seed": 1}],
    zip=[],
    arguments=["sweep=mine", "trainable.env.HF_TOKEN=hf_0123456789abcdefghij"],
)


def test_axes_tell_cells_apart_by_the_columns_that_there_are():
    terms = Terms.of(REQUEST, {"optimizer.lr": "axes.optimizer.lr"})
    assert terms.axes == {"gpus": "gpus", "optimizer.lr": "axes.optimizer.lr"}
    assert (terms.excludes, terms.zips) == (True, False)


def test_a_command_to_be_repeated_tells_no_secret():
    assert Terms.of(REQUEST, {}).arguments == ("sweep=mine", "trainable.env.HF_TOKEN=<hidden>")
    assert Terms.of(REQUEST, {}, ["sweep=theirs"]).arguments == ("sweep=theirs",)
