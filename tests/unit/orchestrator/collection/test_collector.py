import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.collection.collector import COLUMNS, cell_axes, collect, parsed_cell, trials_frame
from orchestrator.journal.record import TrialRecord
from sweeps.status import Status

RecordOf = Callable[..., TrialRecord]


def test_a_record_is_a_row(record_of: RecordOf) -> None:
    record = record_of(
        2,
        1,
        axes={"optimizer.momentum": 0.9, "model.widths": [8, 16]},
        metrics={"accuracy": 0.9, "my_metric": 7},
        provenance={"device_model": "NVIDIA H200", "torch": "2.15", "topology": {"nvlink": True}},
    )
    frame = trials_frame([record])
    assert list(frame.columns) == [
        *COLUMNS,
        "optimizer.momentum",
        "model.widths",
        "my_metric",
        "provenance.torch",
        "provenance.topology",
    ]
    row = frame.iloc[0]
    assert (row["gpus"], row["seed"], row["accuracy"], row["my_metric"]) == (2, 1, 0.9, 7)
    assert (row["device"], row["device_model"], row["status"]) == ("NVIDIA H200", "NVIDIA H200", "ok")
    assert (row["model.widths"], row["provenance.topology"]) == ("[8, 16]", '{"nvlink": true}')
    assert math.isnan(row["loss"])


def test_names_that_are_taken_are_not_overwritten(record_of: RecordOf) -> None:
    record = record_of(1, axes={"strategy": "auto", "loss": "focal"}, metrics={"seed": 5, "loss": 0.25})
    row = trials_frame([record]).iloc[0]
    assert (row["strategy"], row["axes.strategy"]) == ("ddp", "auto")
    assert (row["loss"], row["axes.loss"]) == (0.25, "focal")
    assert (row["seed"], row["metrics.seed"]) == (0, 5)


def test_an_axis_named_like_a_metric_of_the_trainable_stays_an_axis(record_of: RecordOf) -> None:
    row = trials_frame([record_of(1, axes={"width": 8}, metrics={"width": 9.5})]).iloc[0]
    assert (row["width"], row["metrics.width"]) == (8, 9.5)


def test_a_metric_that_is_no_number_is_empty(record_of: RecordOf) -> None:
    row = trials_frame([record_of(1, metrics={"accuracy": "high", "samples_per_s": None})]).iloc[0]
    assert math.isnan(row["accuracy"]) and math.isnan(row["samples_per_s"])


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_the_order_of_the_records_and_their_scale_change_nothing(record_of: RecordOf, data: st.DataObject) -> None:
    shapes = [(gpus, seed) for gpus in (1, 2, 4) for seed in (0, 1, 2)]
    rates = data.draw(st.lists(st.floats(10, 1000), min_size=9, max_size=9))
    ends = data.draw(st.lists(st.sampled_from([Status.OK, Status.OK, Status.OOM]), min_size=9, max_size=9))
    records = [
        record_of(gpus, seed, end, metrics={"samples_per_s": rate}, provenance={"device_model": "A100"})
        for (gpus, seed), rate, end in zip(shapes, rates, ends, strict=True)
    ]
    twice = [replace(each, metrics={"samples_per_s": 2 * each.metrics["samples_per_s"]}) for each in records]
    columns = ["speedup", "speedup_lo", "speedup_hi", "efficiency"]
    summary = collect(records, scaling="weak")[1].set_index("cell_id")
    for others in (data.draw(st.permutations(records)), twice):
        other = collect(others, scaling="weak")[1].set_index("cell_id").loc[summary.index]
        assert (
            (summary[columns] - other[columns]).abs().fillna(0) < 1e-9 * summary[columns].abs().fillna(1) + 1e-9
        ).all(axis=None)
        assert list(other["status"]) == list(summary["status"])
        assert list(other["baseline_cell_id"].fillna("")) == list(summary["baseline_cell_id"].fillna(""))


@pytest.mark.parametrize(
    ("device", "status", "provenance", "told"),
    [
        ("cpu", Status.OK, {"device_model": "Xeon"}, ("cpu", "Xeon")),
        ("cpu", Status.FAILED, {}, ("cpu", None)),
        ("cuda", Status.OK, {"device_model": "NVIDIA H200"}, ("NVIDIA H200", "NVIDIA H200")),
        ("cuda", Status.OK, {}, ("cuda", None)),
        ("cuda", Status.OOM, {"device_model": "NVIDIA H200"}, ("NVIDIA H200", "NVIDIA H200")),
        ("cuda", Status.OOM, {}, (None, None)),  # it ended before it could tell
        ("cuda", Status.OOM, {"device_model": 200}, (None, None)),
    ],
)
def test_the_device_is_the_gpus_model_or_cpu(
    record_of: RecordOf, device: str, status: Status, provenance: dict[str, Any], told: tuple[str | None, str | None]
) -> None:
    row = trials_frame([record_of(1, status=status, device=device, provenance=provenance)]).iloc[0]
    assert (row["device"], row["device_model"]) == told


def test_what_a_packed_trial_held_is_what_it_costs(record_of: RecordOf) -> None:
    """An hour of .5 GPUs, held for the memory of a trial that asked for a quarter, at 4 an hour."""
    records = [
        record_of(0.25, seed=0, gpus_held=0.5, wall_s=3600.0, metrics={"samples_per_s": 1.0}),
        record_of(2, seed=0, wall_s=1800.0, metrics={"samples_per_s": 1.0}),
    ]
    assert collect(records, scaling="weak", price_per_gpu_hour=4)[1]["cost"].tolist() == [2.0, 4.0]


def test_cells_stand_in_the_order_of_their_axes_rules_in_that_of_their_definition(record_of: RecordOf) -> None:
    rules = ("of a later version", "sqrt", "none", "linear")
    records = [record_of(gpus, lr_rule=rule, metrics={"accuracy": 0.9}) for rule in rules for gpus in (2, 1)]
    cells = collect(records, scaling="weak")[1]
    expected = [(gpus, rule) for gpus in (1, 2) for rule in ("none", "linear", "sqrt", "of a later version")]
    assert list(zip(cells["gpus"], cells["lr_rule"], strict=True)) == expected


def test_cells_are_told_apart_by_all_axes_but_the_seed(record_of: RecordOf) -> None:
    one, other = record_of(1, axes={"model.width": 8}), record_of(1, axes={"loss": "focal"})
    axes = {"gpus": "gpus", "device_batch_size": "device_batch_size", "lr_rule": "lr_rule"}
    assert cell_axes([one, other]) == axes | {"model.width": "model.width", "loss": "axes.loss"}
    assert "seed" in one.axes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=50)
@given(value=st.lists(JSON, max_size=2) | st.dictionaries(st.text(max_size=2), JSON, max_size=2))
def test_the_value_of_an_axis_comes_back_from_its_cell(record_of: RecordOf, value: Any) -> None:
    frame = trials_frame([record_of(1, axes={"model.widths": value})])
    assert isinstance(frame["model.widths"][0], str) and parsed_cell(frame["model.widths"][0]) == value


@pytest.mark.parametrize("text", ["[CLS]", "{gpus}", "adam", ""])
def test_text_that_only_begins_like_a_list_stays_text(text: str) -> None:
    assert parsed_cell(text) == text


@pytest.mark.parametrize(
    ("number", "cell"),
    [(2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (2**63, str(2**63)), (-(2**63) - 1, str(-(2**63) - 1))],
)
def test_numbers_of_more_than_64_bits_are_text(record_of: RecordOf, number: int, cell: Any) -> None:
    assert trials_frame([record_of(1, axes={"data.key": number})])["data.key"][0] == cell
