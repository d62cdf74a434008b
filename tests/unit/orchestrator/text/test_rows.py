"""Cells as a reader would say them.

The cells that are not ok: one line where a reason holds for all cells of some values.
"""

from itertools import product
from typing import Any

import pandas as pd
import pytest

from orchestrator.text.rows import gpus_in_words, in_words, not_ok, telling
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


ROOM = "needs 4 ranks; there is room for 2"


def cells(**unlike: Any) -> pd.DataFrame:
    """Of 1, 2 and 4 GPUs, two batches and two strategies; those of four GPUs do not fit, but as `unlike` says."""
    rows = []
    for gpus, batch, strategy in product((1, 2, 4), (32, 64), ("ddp", "independent")):
        row = {"gpus": gpus, "device_batch_size": batch, "lr_rule": "linear", "strategy": strategy}
        ended = (
            {"status": "infeasible", "note": ROOM, "n_ok": 0} if gpus == 4 else {"status": "ok", "note": "", "n_ok": 1}
        )
        rows.append(row | {"n_seeds": 1} | ended | (unlike if gpus == 4 and strategy == "independent" else {}))
    return pd.DataFrame(rows)


def test_all_cells_of_a_value_share_a_line() -> None:
    assert not_ok(cells(), ["strategy"]) == [f"all 4 cells with gpus=4: infeasible; {ROOM}"]


def test_a_reason_for_some_cells_of_a_value_names_each() -> None:
    found = not_ok(cells(note="needs 1 rank of 4 GPUs"), ["strategy"])
    assert found == [
        f"gpus=4, device_batch_size={batch}, lr_rule=linear, strategy={strategy}: infeasible; {note}"
        for strategy, note in (("ddp", ROOM), ("independent", "needs 1 rank of 4 GPUs"))
        for batch in (32, 64)
    ], "two cells each are listed one by one"


def test_a_reason_is_divided_by_an_axis_where_its_parts_are_whole() -> None:
    several = pd.concat([cells(), cells().assign(device_batch_size=lambda each: each["device_batch_size"] * 4)])
    several = several.reset_index(drop=True)
    others = several["strategy"].eq("independent") & several["gpus"].eq(2)
    several.loc[others, ["status", "note", "n_ok"]] = ["infeasible", ROOM, 0]
    assert not_ok(several, ["strategy"]) == [
        f"all 4 cells with gpus=2, strategy=independent: infeasible; {ROOM}",
        f"all 8 cells with gpus=4: infeasible; {ROOM}",
    ]


def test_values_that_tell_nothing_more_are_left_out() -> None:
    unlike = cells()
    unlike["trainable.input"] = ["loader" if gpus == 4 else "resident" for gpus in unlike["gpus"]]
    assert not_ok(unlike, ["strategy", "trainable.input"]) == [f"all 4 cells with gpus=4: infeasible; {ROOM}"]


def test_where_nothing_is_ok_all_cells_share_a_line() -> None:
    failed = cells().assign(status="failed", note="no module named x", n_ok=0)
    assert not_ok(failed, ["strategy"]) == ["all 12 cells: failed; no module named x"]


def test_a_cell_that_other_cells_of_its_values_do_not_share_stands_alone() -> None:
    one = cells()
    one.loc[0, ["status", "note", "n_ok"]] = ["oom", "CUDA out of memory", 0]
    assert not_ok(one, ["strategy"])[0] == (
        "gpus=1, device_batch_size=32, lr_rule=linear, strategy=ddp: oom; CUDA out of memory"
    )
