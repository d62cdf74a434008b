"""Against an account made by hand."""

import math
from typing import Any

import pytest

from orchestrator.analysis.scaling_loss import (
    BETWEEN_NODES,
    LATE,
    LOST,
    REMEDIES,
    REPEATED,
    THREADS,
    UNDIVIDED,
    words_of,
)
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of


def parts(**seconds):
    """A step that is the sum of its parts, and the throughput that 32 samples a rank make of it."""
    given = {"data": 0.0, "host": 0.0, "communication": 0.0, "imbalance": 0.0, "compute": 0.0} | seconds
    return {f"step_{part}_s": value for part, value in given.items()} | {"step_s": sum(given.values())}


def summary(one, two, **fields):
    records = [
        record_of(gpus, 0, **fields, metrics={**metrics, "samples_per_s": 32 * gpus / metrics["step_s"]})
        for gpus, metrics in ((1, one), (2, two))
    ]
    row: dict[str, Any] = collect(records, scaling="weak")[1].iloc[1].to_dict()
    return row


def test_lost_shares_equal_those_computed_by_hand():
    """A step of 10 ms becomes one of 16 ms: 1 of the 6 lost to data, 3 to communication, 2 to slower passes."""
    one = parts(data=0.001, host=0.001, compute=0.008)
    two = parts(data=0.002, host=0.001, compute=0.010, communication=0.003)
    cell = summary(one, two | {"mfu": 0.25})
    assert cell["efficiency"] == pytest.approx(10 / 16) and cell["mfu"] == 0.25
    assert [cell[name] * 16 for name in LOST] == pytest.approx([1, 0, 3, 0, 2, 0], abs=1e-9)
    assert cell["remedy"] == REMEDIES["lost_communication"]


@pytest.mark.parametrize("part", ["data", "host", "communication", "imbalance", "compute"])
def test_each_part_has_its_remedy(part):
    one, extra = {"data": 0.001, "host": 0.001, "compute": 0.008}, {part: 0.01}
    grown = {name: one.get(name, 0) + extra.get(name, 0) for name in {**one, **extra}}
    cell = summary(parts(**one), parts(**grown))
    assert cell[f"lost_{part}"] == pytest.approx(0.5) and cell["remedy"] == REMEDIES[f"lost_{part}"]
    assert sum(cell[name] for name in LOST) + cell["efficiency"] == pytest.approx(1)


@pytest.mark.parametrize(("strategy", "remedy"), [("ddp", REMEDIES["lost_host"]), ("data_parallel", THREADS)])
def test_one_process_for_all_gpus_has_its_own_remedy(strategy, remedy):
    one, two = parts(host=0.001, compute=0.009), parts(host=0.009, compute=0.009)
    assert summary(one, two, strategy=strategy)["remedy"] == remedy


def test_ranks_with_late_launches_need_no_unequal_shares():
    one, two = parts(host=0.001, compute=0.009), parts(host=0.004, compute=0.008, imbalance=0.006)
    assert summary(one, two)["remedy"] == LATE
    assert summary(one, parts(host=0.001, compute=0.009, imbalance=0.008))["remedy"] == REMEDIES["lost_imbalance"]


def test_unmeasured_loss_is_the_rest():
    one = parts(compute=0.008)
    cell = summary(one, parts(compute=0.008) | {"step_s": 0.016})
    assert cell["lost_rest"] == pytest.approx(0.5) and cell["remedy"] == REMEDIES["lost_rest"]


def test_repeated_samples_are_no_part_of_a_step():
    """Two ranks take the same 32 samples in the same 10 ms: half is lost, and no part took longer."""
    one = parts(host=0.002, compute=0.008)
    records = [record_of(gpus, 0, metrics={**one, "samples_per_s": 3200.0}) for gpus in (1, 2)]
    cell: dict[str, Any] = collect(records, scaling="weak")[1].iloc[1].to_dict()
    assert cell["efficiency"] == pytest.approx(0.5)
    assert [cell[name] for name in LOST] == pytest.approx([0, 0, 0, 0, 0, 0.5], abs=1e-9)
    assert cell["remedy"] == REPEATED


def test_linear_scaling_needs_no_remedy():
    cell = summary(parts(compute=0.008), parts(compute=0.0081))
    assert cell["remedy"] == "" and cell["lost_compute"] < 0.02


def test_captured_steps_separate_waiting_for_data_only():
    """A step of 8 ms becomes one of 16 ms, of which 2 wait for data and 6 are of unknown parts."""
    one = {"step_s": 0.008, "step_data_s": 0.0}
    cell = summary(one, {"step_s": 0.016, "step_data_s": 0.002})
    assert [cell[f"lost_{part}"] for part in ("data", "rest")] == pytest.approx([2 / 16, 6 / 16])
    assert math.isnan(cell["lost_communication"]) and cell["remedy"] == UNDIVIDED
    waiting = summary(one, {"step_s": 0.016, "step_data_s": 0.008})
    assert waiting["remedy"] == REMEDIES["lost_data"]


def test_without_parts_of_a_step_there_is_no_loss():
    cell = summary(parts(compute=0.008), {"step_s": 0.016})
    assert cell["remedy"] == "" and all(math.isnan(cell[name]) for name in LOST)
    records = [record_of(1, 0, metrics=parts(compute=0.008) | {"samples_per_s": 5.0})]
    assert math.isnan(collect(records, scaling="weak")[1].iloc[0]["lost_rest"])


def cells_of(metrics, **compared):
    """The cells of such trials, by their GPUs."""
    records = [record_of(gpus, 0, metrics=dict(figures)) for gpus, figures in metrics.items()]
    return [dict(row) for row in collect(records, scaling="weak", **compared)[1].to_dict("records")]


def test_the_baseline_loses_nothing_and_neither_does_a_single_gpu():
    """Begun with two GPUs, a sweep compares with these; and one GPU has nothing to lose by being several."""
    step = parts(compute=0.01)
    by_gpus = {gpus: step | {"samples_per_s": 3000.0 * gpus**0.5} for gpus in (1, 2, 4)}
    base, four = cells_of({gpus: by_gpus[gpus] for gpus in (2, 4)})
    assert all(math.isnan(base[name]) for name in LOST) and base["remedy"] == ""
    assert not math.isnan(four["lost_rest"])
    one, *_ = cells_of(by_gpus, baseline={"gpus": 4})
    assert one["baseline_cell_id"] == "4-32-none" and all(math.isnan(one[name]) for name in LOST)


def test_a_baseline_with_repeated_samples_is_recognised():
    """On two GPUs and on four all ranks take the same 32 samples: half of the samples that counted on two still do."""
    same = parts(compute=0.01) | {"samples_per_s": 3200.0}
    _, four = cells_of({2: same, 4: same})
    assert four["efficiency"] == pytest.approx(0.5) and four["remedy"] == REPEATED
    # Half as many as there should be on both: nothing more is repeated, and so all is lost to the passes.
    half = parts(compute=0.01) | {"samples_per_s": 3200.0}
    slower = parts(compute=0.02) | {"samples_per_s": 3200.0}
    _, four = cells_of({2: half, 4: slower})
    assert four["lost_compute"] == pytest.approx(0.5) and four["remedy"] == REMEDIES["lost_compute"]


def test_a_loss_of_three_percent_has_a_remedy():
    cell = summary(parts(compute=0.0097), parts(compute=0.01))
    assert cell["lost_compute"] == pytest.approx(0.03) and cell["remedy"] == REMEDIES["lost_compute"]


def test_a_missing_part_leaves_the_rest_unknown():
    one, two = parts(data=0.001, compute=0.009), parts(data=0.001, compute=0.019)
    del two["step_imbalance_s"]
    cell = summary(one, two)
    assert cell["lost_compute"] == pytest.approx(19 / 20 - 0.9 * 0.5) and math.isnan(cell["lost_rest"])
    assert cell["remedy"] == ""


def on_nodes(gpus, nodes, samples_per_s, **metrics):
    own = {"ranks": nodes, "strategy": "own_ranks", "axes": {"nodes": nodes}}
    return record_of(gpus, 0, metrics=metrics | {"samples_per_s": samples_per_s}, **own)


def test_a_command_loses_between_nodes_what_it_does_not_lose_within_one():
    """Four GPUs keep 80% on one node and 50% on two: 30% are lost between nodes, and 20% to unknown parts."""
    records = [on_nodes(1, 1, 100), on_nodes(4, 1, 320), on_nodes(4, 2, 200), on_nodes(8, 2, 400)]
    cells = collect(records, scaling="weak")[1]
    _, within, between, alone = cells.to_dict("records")
    assert [row["n_nodes"] for row in (within, between, alone)] == [1, 2, 2]
    assert [between[name] for name in ("lost_communication", "lost_rest")] == pytest.approx([0.3, 0.2])
    assert between["remedy"] == BETWEEN_NODES and math.isnan(between["lost_compute"])
    # Without the same cell on fewer nodes, nothing tells what the second node costs.
    assert all(math.isnan(row[name]) for row in (within, alone) for name in LOST)
    assert words_of("lost_communication", between, cells) != words_of("lost_communication", within, cells)


def test_parts_of_a_step_precede_a_comparison_of_nodes():
    """A step of 10 ms becomes one of 16 ms on four GPUs of a node, and of 20 ms on those of two nodes."""
    steps = {(1, 1): {}, (4, 1): {"communication": 0.006}, (4, 2): {"communication": 0.009, "imbalance": 0.001}}
    records = []
    for (gpus, nodes), waits in steps.items():
        step = parts(compute=0.01, **waits)
        records.append(
            record_of(gpus, 0, metrics=step | {"samples_per_s": gpus / step["step_s"]}, axes={"nodes": nodes})
        )
    cells = collect(records, scaling="weak")[1]
    _, within, between = cells.to_dict("records")
    assert (within["lost_communication"], between["lost_communication"]) == pytest.approx((6 / 16, 9 / 20))
    assert (within["remedy"], between["remedy"]) == (REMEDIES["lost_communication"], BETWEEN_NODES)
