"""Cells as a reader would say them."""

from typing import Any

import pandas as pd
import pytest

from orchestrator.text.cell_in_words import gpus_in_words, in_words, telling
from sweeps.lr_rule import RULES

LINEAR = " and the learning rate scaled linearly"
CELL = {"gpus": 2, "device": "NVIDIA H200", "strategy": "ddp", "lr_rule": "linear"}
CELL |= {"device_batch_size": 256, "global_batch_size": 512}
ALL = ["gpus", "device_batch_size", "lr_rule"]


@pytest.mark.parametrize(
    ("fields", "further", "told"),
    [
        ({}, [], f"2 GPUs with a batch of 256 each (512 in all){LINEAR}"),
        (
            {"gpus": 1.0, "global_batch_size": 256.0},
            [],
            f"1 GPU with a batch of 256{LINEAR}",
        ),
        (
            {"global_batch_size": 1024},
            [],
            f"2 GPUs with a batch of 2 × 256 each (1024 in all){LINEAR}",
        ),
        (
            {"gpus": 1, "global_batch_size": 1024},
            [],
            f"1 GPU with a batch of 4 × 256 (1024 in all){LINEAR}",
        ),
        (
            {"gpus": 3, "device_batch_size": 171},
            [],
            f"3 GPUs with a batch of up to 171 each (512 in all){LINEAR}",
        ),
        (
            {"gpus": 3, "device_batch_size": 171, "global_batch_size": 1024},
            [],
            f"3 GPUs with a batch of 2 × up to 171 each (1024 in all){LINEAR}",
        ),
        (
            {"strategy": "ddp_unequal"},
            [],
            f"2 GPUs with a batch of 512 in unequal shares{LINEAR}",
        ),
        (
            {"strategy": "ddp_unequal", "gpus": 1, "global_batch_size": 256},
            [],
            f"1 GPU with a batch of 256{LINEAR}",
        ),
        (
            {"strategy": "independent"},
            [],
            f"2 GPUs with a batch of 256 each (one model per GPU){LINEAR}",
        ),
        (
            {"gpus": 0.25, "global_batch_size": 256},
            [],
            f"0.25 GPUs with a batch of 256{LINEAR}",
        ),
        (
            {"device": "cpu"},
            [],
            f"2 processes with a batch of 256 each (512 in all){LINEAR}",
        ),
        ({}, ["device"], f"2 × NVIDIA H200 with a batch of 256 each (512 in all){LINEAR}"),
        (
            {"device": "cpu", "gpus": 1, "global_batch_size": 256},
            ["device"],
            f"1 process with a batch of 256{LINEAR}",
        ),
        (
            {"lr_rule": "of a later version", "lr_multiplier": 0.5},
            ["lr_multiplier"],
            "2 GPUs with a batch of 256 each (512 in all) and the learning rate by lr_rule=of a later version × 0.5",
        ),
        (
            {"optimizer.momentum": 0.9, "axes.note": None},
            ["optimizer.momentum", "axes.note"],
            f"2 GPUs with a batch of 256 each (512 in all){LINEAR}, optimizer.momentum=0.9, note=null",
        ),
    ],
)
def test_what_has_words_is_told_in_words_and_all_else_as_a_config_has_it(
    fields: dict[str, Any], further: list[str], told: str
) -> None:
    assert in_words(CELL | fields, [*ALL, *further]) == told


def test_every_rule_is_told_from_every_other() -> None:
    told = {in_words(CELL | {"lr_rule": rule}, ALL) for rule in RULES}
    assert len(told) == len(RULES)


def test_the_rate_is_no_word_of_a_sweep_that_never_scales_it() -> None:
    cells = pd.DataFrame([CELL, CELL]).assign(lr_multiplier=1.0)
    assert telling(cells) == ["gpus", "device_batch_size", "lr_rule"]
    assert telling(cells.assign(lr_rule="none")) == ["gpus", "device_batch_size"]
    assert telling(cells.assign(lr_rule="none", lr_multiplier=[1, 2])) == ["gpus", "device_batch_size", "lr_multiplier"]
    assert in_words(CELL | {"lr_multiplier": 2}, ["gpus", "device_batch_size", "lr_multiplier"]).endswith(
        " and the learning rate × 2"
    )


def test_gpus_are_counted_in_words() -> None:
    assert [gpus_in_words(1), gpus_in_words(0.5), gpus_in_words(2, on_cpu=True)] == ["1 GPU", "0.5 GPUs", "2 processes"]
