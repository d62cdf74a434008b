"""Which cell each cell is compared with: rules that hold whatever the rows and their order."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.baseline import MACHINES, MIXED, Comparison, baseline_cells, same_machines
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of


def cell(gpus, batch, status="ok", model="H200"):
    return {
        "cell_id": f"{gpus}-{batch}-{model}",
        "gpus": gpus,
        "device_batch_size": batch,
        "global_batch_size": gpus * batch,
        "status": status,
        "device_model": model,
        MIXED: False,
    }


CELLS = pd.DataFrame(
    [
        cell(1, 32, "oom"),
        *(cell(gpus, batch) for gpus in (2, 4, 8) for batch in (32, 64)),
        *(cell(gpus, 32, model="A100") for gpus in (1, 2)),
    ]
)


def compared(cells, **named):
    """The baseline of each cell, as weak scaling has it."""
    baselines = baseline_cells(cells, ["device_model", "device_batch_size"], named)
    return dict(zip(cells["cell_id"], baselines, strict=True))


@given(st.permutations(range(len(CELLS))))
def test_the_baseline_is_independent_of_the_order_of_ends(order):
    shuffled = CELLS.iloc[order]
    baseline_of = compared(shuffled)
    assert {cell: baseline_of[cell] for cell in ("1-32-H200", "8-32-H200", "8-64-H200", "2-32-A100")} == {
        "1-32-H200": "2-32-H200",
        "8-32-H200": "2-32-H200",
        "8-64-H200": "2-64-H200",
        "2-32-A100": "1-32-A100",
    }


def test_naming_one_side_of_the_batch_frees_the_other():
    baseline_of = compared(CELLS, global_batch_size=128)
    assert {base for cell, base in baseline_of.items() if cell.endswith("H200")} == {"2-64-H200"}
    assert pd.isna(baseline_of["2-32-A100"]), "no A100 has that batch"


def test_equal_rules_share_the_reference_cell():
    ran = [("none", 32, 1.0), ("none", 64, 1.0), ("sqrt", 64, 1.0), ("sqrt", 64, 2.0), ("adascale", 64, 1.0)]
    ran += [("linear", 32, 1.0), ("linear", 64, 1.0)]
    cells = pd.DataFrame(
        cell(1, batch) | {"cell_id": f"{rule}-{batch}-{times}", "lr_rule": rule, "lr_multiplier": times, "sweep": "s"}
        for rule, batch, times in ran
    )
    references = Comparison(scaling="weak", reference_batch_size=32).references(cells)
    compared_with = dict(zip(cells["cell_id"], references, strict=True))
    assert compared_with["none-64-1.0"] == "none-32-1.0" and compared_with["linear-64-1.0"] == "linear-32-1.0"
    assert compared_with["sqrt-64-1.0"] in ("none-32-1.0", "linear-32-1.0")  # sqrt at 32 did not run
    assert pd.isna(compared_with["sqrt-64-2.0"]) and pd.isna(compared_with["adascale-64-1.0"])


def test_warm_ups_share_the_reference_cell():
    ran = [("none", 32, 0), ("linear", 64, 0), ("linear", 64, 5), ("lars", 32, 0), ("lars", 64, 5), ("lars", 64, 0)]
    cells = pd.DataFrame(
        cell(1, batch)
        | {"cell_id": f"{rule}-{batch}-{warmup}", "lr_rule": rule, "lr_multiplier": 1.0, "sweep": "s"}
        | {"warmup_epochs": warmup}
        for rule, batch, warmup in ran
    )
    axes = {"warmup_epochs": "warmup_epochs"}
    references = Comparison(scaling="weak", reference_batch_size=32, axis_columns=axes).references(cells)
    assert references.tolist() == ["none-32-0"] * 3 + ["lars-32-0"] * 3

    own = cells[:1].assign(cell_id="linear-32-5", lr_rule="linear", warmup_epochs=5)
    both = pd.concat([cells, own], ignore_index=True)
    references = Comparison(scaling="weak", reference_batch_size=32, axis_columns=axes).references(both)
    assert references[:3].tolist() == ["none-32-0", "linear-32-5", "linear-32-5"]  # its own rule ran


def test_mixed_devices_have_no_accuracy_reference():
    records = [record_of(1, s, metrics={"accuracy": 0.9}) for s in range(2)]
    records += [record_of(2, s, metrics={"accuracy": 0.9}, provenance={"device_model": f"GPU {s}"}) for s in range(2)]
    cells = collect(records, scaling="weak", reference_batch_size=32)[1].set_index("cell_id")
    assert cells["reference_cell_id"]["1-32-none"] == "1-32-none" and pd.isna(cells["reference_cell_id"]["2-32-none"])


@pytest.mark.parametrize(
    ("own", "other", "same"),
    [
        ({"host": "a", "machine": "1"}, {"host": "b", "machine": "1"}, True),  # two containers of one machine
        ({"host": "node", "machine": "1"}, {"host": "node", "machine": "2"}, False),  # two machines of one name
        ({"host": "a"}, {"host": "a", "machine": "1"}, True),  # an earlier version knew no ids
        ({"host": "a"}, {"host": "b", "machine": "1"}, False),
        ({}, {"host": "a", "machine": "1"}, None),
    ],
)
def test_machines_are_compared_by_id_then_by_name(own, other, same):
    def ran(cell_id, on):
        known = [frozenset([on[name]]) if name in on else frozenset() for name in ("host", "machine")]
        return {"cell_id": cell_id, "baseline_cell_id": "base", **dict(zip(MACHINES, known, strict=True))}

    is_same = same_machines(pd.DataFrame([ran("base", other), ran("cell", own)]))
    assert is_same[0] and (is_same[1] is pd.NA if same is None else bool(is_same[1]) is same)


def test_speed_baseline_may_have_another_rule():
    ran = [(1, "linear", "diverged"), (2, "linear", "ok"), (1, "none", "ok"), (1, "sqrt", "ok"), (2, "sqrt", "ok")]
    ran += [(2, "lars", "ok"), (2, "adascale", "ok")]
    cells = pd.DataFrame(
        cell(gpus, 32, status) | {"cell_id": f"{rule}-{gpus}", "lr_rule": rule, "lr_multiplier": 1.0, "sweep": "s"}
        for gpus, rule, status in ran
    )
    baseline_of = dict(zip(cells["cell_id"], Comparison(scaling="weak").baselines(cells), strict=True))
    assert baseline_of["linear-2"] == baseline_of["none-1"] == "none-1" and baseline_of["sqrt-2"] == "sqrt-1"
    assert baseline_of["lars-2"] == "lars-2" and baseline_of["adascale-2"] == "adascale-2"  # their steps do other work
    named = Comparison(scaling="weak", baseline={"lr_rule": "sqrt"}).baselines(cells)
    assert set(named) == {"sqrt-1"}


def test_cells_over_several_nodes_are_compared_with_that_on_one():
    ran = [(1, 1), (2, 1), (2, 2), (4, 2)]
    constant = {"lr_rule": "none", "lr_multiplier": 1.0, "sweep": "s"}
    cells = pd.DataFrame(
        cell(gpus, 32) | constant | {"cell_id": f"{gpus} on {nodes}", "nodes": nodes} for gpus, nodes in ran
    )
    rules = Comparison(scaling="weak", reference_batch_size=64, axis_columns={"nodes": "nodes"})
    assert set(rules.baselines(cells)) == {"1 on 1"}
    assert set(rules.baselines(cells[1:])) == {"2 on 1"}
    assert set(rules.references(cells)) == {"2 on 1"}
