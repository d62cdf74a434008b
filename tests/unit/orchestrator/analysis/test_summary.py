"""The summary of 2 GPU counts × 2 LR rules × 3 seeds, worked out by hand, with trials that went wrong.

What it takes to reach the target, worked out by hand.

What accuracies show against a margin, worked out by hand.

Seeds of cells side by side; what tests see of a difference is what its interval shows.
"""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy  # its `stats` is slow, and loaded when it is used

from orchestrator.analysis.baseline import Comparison
from orchestrator.analysis.by_seed import Differences, by_seed
from orchestrator.analysis.summary import COLUMNS, further_axes, summary_frame
from orchestrator.analysis.validity import timed_by_one_process
from orchestrator.config.settings import ReportSection
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.speedup import speedup_markdown
from sweeps.errors import ConfigError
from sweeps.status import Status
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of

T2 = 4.302652729911275  # t(.975) with 2 degrees of freedom


def measured(samples_per_s, accuracy, **other):
    epoch_s = 1000 / samples_per_s
    return {"samples_per_s": samples_per_s, "epoch_s": epoch_s, "accuracy": accuracy, **other}


@pytest.fixture
def sweep():
    def oom(seed):
        return record_of(2, seed, Status.OOM, lr_rule="linear", note="CUDA out of memory", wall_s=3.0)

    return [
        record_of(1, 0, metrics=measured(100, 0.90, time_to_target_s=8, peak_memory_gb=1.0)),
        record_of(1, 1, metrics=measured(200, 0.91, time_to_target_s=8, peak_memory_gb=1.5)),
        record_of(1, 2, metrics=measured(400, 0.92, time_to_target_s=8, peak_memory_gb=1.2)),
        record_of(2, 0, metrics=measured(200, 0.90, time_to_target_s=4)),
        record_of(2, 1, metrics=measured(400, 0.90, time_to_target_s=4)),
        record_of(2, 2, metrics=measured(1200, 0.90, time_to_target_s=4)),
        record_of(1, 0, lr_rule="linear", metrics=measured(100, 0.8)),
        record_of(1, 1, lr_rule="linear", metrics=measured(100, 0.8, time_to_target_s=9)),
        # seed 2 is missing
        record_of(2, 0, lr_rule="linear", metrics=measured(150, 0.9)),
        oom(1),
        record_of(2, 2, Status.DIVERGED, lr_rule="linear", note="loss is nan", metrics={"accuracy": 0.1}),
    ]


@pytest.fixture
def cells(sweep):
    return cells_of(sweep, report=ReportSection(price_per_gpu_hour=3.6))


def interval(row, column):
    return row[column], row[f"{column}_lo"], row[f"{column}_hi"]


def test_the_columns_of_the_interface_come_first(sweep):
    written = (
        "sweep cell_id baseline_cell_id gpus device strategy global_batch_size device_batch_size lr_rule"
        " lr_multiplier lr status n_seeds n_ok first_epoch_s epoch_s epoch_s_lo epoch_s_hi train_s samples_per_s"
        " samples_per_s_lo samples_per_s_hi speedup speedup_lo speedup_hi efficiency efficiency_lo efficiency_hi"
        " scaling accuracy accuracy_lo accuracy_hi val_accuracy time_to_target_s speedup_to_target wall_s energy_j"
        " energy_j_per_sample cost peak_memory_gb gpu_util power_w timing_valid note"
    )
    summary = collect(sweep, scaling="weak")[1]
    assert list(summary.columns)[: len(COLUMNS)] == written.split()
    assert list(summary["cell_id"]) == ["1-32-none", "1-32-linear", "2-32-none", "2-32-linear"]


def test_the_baseline_cell_has_hand_computed_figures_and_intervals(cells):
    row: Any = cells.loc["1-32-none"]
    half = T2 * math.log(2) / math.sqrt(3)
    assert interval(row, "samples_per_s") == pytest.approx((200, 200 * math.exp(-half), 200 * math.exp(half)))
    assert interval(row, "epoch_s") == pytest.approx((5, 5 * math.exp(-half), 5 * math.exp(half)))
    assert interval(row, "accuracy") == pytest.approx((0.91, 0.91 - T2 * 0.01 / 3**0.5, 0.91 + T2 * 0.01 / 3**0.5))
    assert interval(row, "speedup") == interval(row, "efficiency") == (1, 1, 1)
    assert (row["status"], row["n_seeds"], row["n_ok"], row["baseline_cell_id"]) == ("ok", 3, 3, "1-32-none")
    assert (row["device"], row["scaling"], row["peak_memory_gb"]) == ("NVIDIA H200", "weak", 1.5)
    assert (row["wall_s"], row["cost"]) == pytest.approx((10, 0.01))
    # The rates with these steps are 100, 200, 400 and, with another rule, 100, 100: the median is 100, none is slow.
    assert row["timing_valid"] and row["note"] == ""
    assert row[["energy_j", "gpu_util", "power_w", "val_accuracy", "first_epoch_s"]].isna().all()


def test_speedup_is_paired_by_seed(cells):
    row: Any = cells.loc["2-32-none"]
    # log ratios ln 2, ln 2, ln 3: mean ln 12 / 3, s = (ln 3 − ln 2) / √3
    half = T2 * math.log(1.5) / 3
    point = 12 ** (1 / 3)
    expected = [point, point * math.exp(-half), point * math.exp(half)]
    assert interval(row, "speedup") == pytest.approx(expected)
    assert interval(row, "efficiency") == pytest.approx([speedup / 2 for speedup in expected])
    assert row["speedup"] == pytest.approx(row["samples_per_s"] / cells.loc["1-32-none", "samples_per_s"])
    assert row["speedup_to_target"] == pytest.approx(2)
    assert row["cost"] == pytest.approx(0.02)
    # Differences −.00, −.01, −.02 against the reference batch of 32, paired by seed.
    half = T2 * 0.01 / math.sqrt(3)
    assert interval(row, "accuracy_difference") == pytest.approx((-0.01, -0.01 - half, -0.01 + half))
    assert row["reference_cell_id"] == "1-32-none"


def test_a_cell_with_a_missing_seed_has_two_seeds(cells):
    row: Any = cells.loc["1-32-linear"]
    assert (row["status"], row["n_seeds"], row["n_ok"]) == ("ok", 2, 2)
    assert interval(row, "samples_per_s") == pytest.approx((100, 100, 100))
    assert math.isnan(row["time_to_target_s"])
    assert "target" in row["note"] and "1 of 2" in row["note"]


def test_failures_are_rows_but_never_averaged(cells):
    row: Any = cells.loc["2-32-linear"]
    assert (row["status"], row["n_seeds"], row["n_ok"]) == ("oom", 3, 1)
    # The rates with these steps are 150 and, with another rule, 200, 400, 1200: the median is 300. The timing counts,
    # because the cell has no other seeds to outvote it.
    oom, diverged, slow = row["note"].split("; ")
    assert slow.startswith("straggler: ") and "2.0 times" in slow
    assert oom.startswith("1 of 3") and oom.endswith("oom: CUDA out of memory")
    assert diverged.startswith("1 of 3") and diverged.endswith("diverged: loss is nan")
    assert (row["samples_per_s"], row["accuracy"], row["speedup"]) == pytest.approx((150, 0.9, 1.5))
    assert row[["samples_per_s_lo", "accuracy_hi", "speedup_lo", "efficiency_hi"]].isna().all()
    assert row["device"] == "NVIDIA H200" and row["baseline_cell_id"] == "1-32-linear"


def test_seeds_that_differ_are_compared_by_welch():
    rates = {(1, 0): 100, (1, 1): 200, (2, 1): 400, (2, 2): 800}
    records = [record_of(*key, metrics=measured(rate, 0.9)) for key, rate in rates.items()]
    row: Any = collect(records, scaling="weak")[1].iloc[1]
    # Both variances (ln 2)²/2 over 2: error ln 2/√2, 2 degrees of freedom.
    half = T2 * math.log(2) / math.sqrt(2)
    assert interval(row, "speedup") == pytest.approx((4, 4 * math.exp(-half), 4 * math.exp(half)))


def test_strong_scaling_keeps_the_global_batch():
    shapes = [(1, 64), (2, 32), (4, 16), (2, 64)]
    records = [record_of(gpus, batch=batch, metrics=measured(100 * gpus, 0.9)) for gpus, batch in shapes]
    summary = collect(records, scaling="strong")[1]
    assert list(summary["baseline_cell_id"]) == ["1-64-none", "1-64-none", "2-64-none", "1-64-none"]
    assert list(summary["speedup"]) == pytest.approx([1, 2, 1, 4])
    assert list(summary["efficiency"]) == pytest.approx([1, 1, 1, 1])


@pytest.mark.parametrize("bad", [Status.OOM, Status.FAILED])
def test_only_an_ok_cell_is_a_baseline(bad):
    records = [
        record_of(1, metrics=measured(100, 0.9)),
        record_of(1, 1, bad, provenance={"device_model": "NVIDIA H200"}),
        record_of(2, metrics=measured(200, 0.9)),
        record_of(4, metrics=measured(300, 0.9)),
    ]
    summary = collect(records, scaling="weak")[1]
    assert list(summary["baseline_cell_id"]) == ["2-32-none"] * 3
    assert list(summary["efficiency"]) == pytest.approx([1.0, 1.0, 0.75])


def test_a_named_baseline_replaces_the_default():
    rates = {(1, "none"): 100, (2, "none"): 180, (1, "linear"): 90, (2, "linear"): 150}
    records = [record_of(gpus, lr_rule=rule, metrics=measured(rate, 0.9)) for (gpus, rule), rate in rates.items()]

    def baselines(**named):
        return list(collect(records, scaling="weak", baseline=named)[1]["baseline_cell_id"])

    assert baselines(lr_rule="none") == ["1-32-none"] * 4
    assert baselines(gpus=2) == ["2-32-none", "2-32-linear"] * 2
    assert baselines(gpus=2, lr_rule="linear", device_batch_size=32) == ["2-32-linear"] * 4
    assert all(pd.isna(baseline) for baseline in baselines(gpus=8))
    with pytest.raises(ConfigError, match="'rule'.*axes: .*lr_rule"):
        baselines(rule="none")
    with pytest.raises(ValueError, match="strong, weak"):
        collect(records, scaling="sideways")


def test_further_axes_are_columns_and_separate_baselines():
    key = "optimizer.momentum"
    values = [0.0, 0.9, None]
    records = [
        record_of(gpus, axes={key: value}, metrics=measured(100 * gpus, 0.9)) for gpus in (1, 2) for value in values
    ]
    summary = collect(records, scaling="weak")[1]
    assert list(summary[key].fillna(-1)) == [0.0, 0.9, -1, 0.0, 0.9, -1] and further_axes(summary) == [key]
    assert list(summary["speedup"]) == pytest.approx([1, 1, 1, 2, 2, 2])
    named = collect(records, scaling="weak", baseline={key: 0.9})[1]
    assert set(named["baseline_cell_id"]) == {"1-32-none-0.9"}


def test_a_cell_has_the_extremes_of_its_seeds():
    seen = [
        {"steps": 12, "sm_clock_mhz": 1000.0, "temperature_c": 70.0, "power_w": 300.0, "peak_memory_gb": 4.0},
        {"steps": 8, "sm_clock_mhz": 1400.0, "temperature_c": 60.0, "power_w": 500.0, "peak_memory_gb": 3.0},
    ]
    records = [
        record_of(1, seed, wall_s=10.0 + 10 * seed, metrics=measured(100, 0.9, epochs=10 - 5 * seed, **seed_metrics))
        for seed, seed_metrics in enumerate(seen)
    ]
    trials, _ = collect(records, scaling="weak")
    trials = trials.assign(co_tenants=[3, 1])
    priced = ReportSection(price_per_gpu_hour=3.6)
    (cell,) = summary_frame(trials, Comparison(scaling="weak"), report=priced).to_dict("records")
    figures = "epochs steps gpu_clock_mhz gpu_temperature_c power_w peak_memory_gb most_co_tenants wall_s".split()
    assert [cell[figure] for figure in figures] == [5, 8, 1200, 70, 400, 4, 3, 15]
    assert cell["cost"] == pytest.approx(0.015)


def test_axes_may_have_any_name():
    axes = ("model", "order", "other", "mixed", "size", "told", "difference", "cost", "seeds")
    records = [
        record_of(gpus, seed, axes=dict.fromkeys(axes, value), metrics=measured(100 * gpus, 0.9))
        for gpus in (1, 2)
        for value in ("small", "large")
        for seed in (0, 1)
    ]
    summary = collect(records, scaling="weak", reference_batch_size=32)[1]
    assert list(summary["speedup"]) == pytest.approx([1, 1, 2, 2])
    assert [cell.rpartition("-")[2] for cell in summary["reference_cell_id"]] == ["small", "large"] * 2
    texts = accuracy_markdown(summary), speedup_markdown(summary)
    names = ["large", *(f"{axis}=large" for axis in axes[1:])]
    assert all(name in text for name in names for text in texts)


def test_other_hardware_is_never_compared():
    def on(model):
        return {"provenance": {"device_model": model}, "metrics": measured(100, 0.9)}

    records = [
        record_of(1, **on("A100")),
        record_of(2, **on("H200")),
        record_of(4, 0, **on("A100")),
        record_of(4, 1, **on("H200")),
        record_of(8, 0, Status.INFEASIBLE, note="needs 8 ranks"),
    ]
    summary = collect(records, scaling="weak")[1]
    assert list(summary["device"].fillna("")) == ["A100", "H200", "A100 + H200", ""]
    assert list(summary["baseline_cell_id"].fillna("")) == ["1-32-none", "2-32-none", "", ""]
    assert list(summary["timing_valid"].astype("object").fillna("")) == [True, True, False, ""]
    assert list(summary["timing_fault"].fillna("")) == ["", "", "several_models", ""]
    first, second, mixed, infeasible = summary["note"]
    assert (first, second, infeasible) == ("", "", "needs 8 ranks")
    assert "device models" in mixed and "cluster.gpu_type" in mixed


def test_invalid_timings_are_marked():
    long = {"window_s": 2.0, "window_steps": 50}
    records = [
        record_of(0.25, timing="shared", metrics=measured(100, 0.9, **long)),
        record_of(1, metrics=measured(100, 0.9, **long)),
        record_of(1, 1, metrics=measured(100, 0.9, window_s=2.5, window_steps=49)),
        record_of(2, timing="shared", status=Status.FAILED),
    ]
    trials, summary = collect(records, scaling="weak")
    assert list(trials["timing_valid"].astype("object").fillna("")) == [False, True, False, ""]
    assert list(summary["timing_valid"].astype("object").fillna("")) == [False, True, ""]
    shared = "timing shared: other trials ran on the same devices"
    assert list(summary["note"])[0] == shared
    assert "1 of 2 seeds" in list(summary["note"])[1]
    assert ["rerun=failed" in note for note in summary["note"]] == [False, False, True]
    assert summary["samples_per_s"][0] == pytest.approx(100)


def test_on_cpus_the_device_is_cpu_and_nothing_costs():
    records = [
        record_of(gpus, device="cpu", provenance={"device_model": "Xeon"}, metrics=measured(100, 0.9))
        for gpus in (1, 2)
    ]
    summary = collect(records, scaling="weak", report=ReportSection(price_per_gpu_hour=3.6))[1]
    assert set(summary["device"]) == {"cpu"}
    assert summary["cost"].isna().all()
    assert summary["speedup"].notna().all()


def test_cells_count_processes_that_timed_valid_seeds():
    def trial(gpus, seed, process, **other):
        told = {"device_model": "NVIDIA H200", "host": "a"} | ({"process": process} if process else {})
        told |= {} if gpus == 16 else {"torch": "2.11"}  # a command loads none
        return record_of(gpus, seed, metrics=measured(100, 0.9), provenance=told, **other)

    records = [
        *(trial(1, seed, "7") for seed in (0, 1)),
        *(trial(2, seed, str(seed)) for seed in (0, 1)),
        *(trial(4, seed, None) for seed in (0, 1)),
        *(trial(8, 0, "7"), trial(8, 1, "8", timing="shared")),  # whose timing does not count
        *(trial(16, seed, None) for seed in (0, 1)),
    ]
    trials, cells = collect(records, scaling="weak")
    assert list(trials["process"][:3]) == ["7", "7", "0"] and "provenance.process" not in trials
    assert [None if pd.isna(many) else many for many in cells["n_processes"]] == [1, 2, None, 1, 2]
    assert timed_by_one_process(cells).tolist() == [True, False, True, False, False]


def test_launch_share_is_averaged_over_valid_gpu_trials():
    def trial(gpus, seed, host_s, **other):
        return record_of(gpus, seed, metrics=measured(100, 0.9) | {"step_s": 0.01, "step_host_s": host_s}, **other)

    records = [
        *(trial(1, 0, 0.002), trial(1, 1, 0.004)),
        *(trial(2, 0, 0.002), trial(2, 1, 0.009, timing="shared")),  # whose timing does not count
        trial(4, 0, 0.002, device="cpu"),  # a loop's own work, which is not luck
        record_of(8, metrics=measured(100, 0.9)),
    ]
    shares = collect(records, scaling="weak")[1]["launch_share"]
    assert list(shares[:2]) == pytest.approx([0.3, 0.2]) and shares[2:].isna().all()


def test_wall_time_and_cost_include_all_known_attempts():
    # Seed 0 took 30 s, 20 of them in an attempt that was lost; seed 1 took 10 s: 40 s of one GPU at 3.6 an hour.
    records = [
        record_of(seed=0, earlier_s=20.0, attempt=2, metrics=measured(100, 0.9)),
        record_of(seed=1, attempt=3, unknown_attempts=2, note="slow", metrics=measured(100, 0.9)),
    ]
    trials, cells = collect(records, scaling="weak", report=ReportSection(price_per_gpu_hour=3.6))
    row: Any = cells.iloc[0]
    assert list(trials["wall_s"]) == [30, 10]
    assert (row["wall_s"], row["cost"]) == pytest.approx((20, 0.02))
    assert row["note"].startswith("slow; ") and "exclude 2 " in row["note"]


def test_without_trials_the_table_is_empty():
    trials, summary = collect([], scaling="weak")
    assert len(trials) == len(summary) == 0
    assert list(summary.columns)[: len(COLUMNS)] == list(COLUMNS)


def test_without_any_ok_trial_nothing_is_compared():
    records = [record_of(gpus, 0, Status.FAILED, note="boom") for gpus in (1, 2)]
    summary = collect(records, scaling="weak", reference_batch_size=32)[1]
    assert summary["baseline_cell_id"].isna().all()
    assert summary["samples_per_s"].isna().all()
    assert list(summary["note"]) == ["boom; rerun=failed runs it again"] * 2


def test_disturbed_timings_are_excluded_if_another_seed_is_valid():
    """Seeds at 100, 120 and, beside somebody else's work, 10 samples/s; their accuracies count all the same."""
    one = [record_of(1, seed, metrics=measured(rate, 0.9)) for seed, rate in enumerate((50, 60, 55))]
    two = [
        record_of(2, seed, metrics=measured(rate, accuracy, energy_j=energy_j, **seen))
        for seed, (rate, accuracy, energy_j, seen) in enumerate(
            ((100, 0.9, 7.0, {}), (120, 0.8, 9.0, {}), (10, 0.7, 90.0, {"foreign_cpu": 0.4}))
        )
    ]
    summary = collect(one + two, scaling="weak")[1]
    row: Any = summary.iloc[1]
    assert (row["n_ok"], row["n_timed"], row["timing_valid"]) == (3, 2, True)
    assert row["samples_per_s"] == pytest.approx(math.sqrt(100 * 120)) and row["energy_j"] == pytest.approx(8)
    assert row["speedup"] == pytest.approx(row["samples_per_s"] / summary["samples_per_s"][0])
    assert row["accuracy"] == pytest.approx(0.8) and row["wall_s"] == pytest.approx(10)
    parts = row["note"].split("; ")
    assert [part.split()[0] for part in parts] == ["others", "straggler:", "timed", "not"] and "2 of 3" in parts[2]
    alone = collect(two[2:], scaling="weak")[1].iloc[0]
    assert (alone["n_timed"], alone["timing_valid"], alone["samples_per_s"]) == (1, False, pytest.approx(10))


def test_a_straggler_does_not_count_if_other_seeds_agree():
    """In the first cell 100 and 110 agree against 10; in the second, 100 and 200 do not agree: all three count."""
    rates = {1: (100, 110, 10), 2: (100, 200, 10)}
    records = [
        record_of(g, s, metrics=measured(rate, 0.9))
        for g, seed_rates in rates.items()
        for s, rate in enumerate(seed_rates)
    ]
    trials, cells = collect(records, scaling="weak")
    assert [None if pd.isna(fault_name) else fault_name for fault_name in trials["timing_fault"]] == [
        *[None] * 2,
        "straggler",
        *[None] * 3,
    ]
    assert cells["n_timed"].tolist() == [2, 3] and cells["timing_valid"].all()
    expected = [math.sqrt(100 * 110), (100 * 200 * 10) ** (1 / 3)]
    assert cells["samples_per_s"].tolist() == pytest.approx(expected)
    assert "straggler: " in cells["note"][0] and "timed from 2 of 3 seeds" in cells["note"][0]


def test_labels_leave_out_an_axis_without_a_value():
    records = [record_of(1, axes={"slow_down": slow}, metrics=measured(100, 0.9)) for slow in (None, {"rank": 1})]
    summary = collect(records, scaling="weak", reference_batch_size=32)[1]
    for text in (speedup_markdown(summary), accuracy_markdown(summary)):
        assert ", slow_down={" in text and "null" not in text and "nan" not in text


def test_a_target_that_a_disturbed_seed_reached_is_reached():
    records = [
        record_of(1, 0, metrics=measured(100, 0.9, time_to_target_s=4.0)),
        record_of(1, 1, metrics=measured(50, 0.9, time_to_target_s=8.0, foreign_cpu=0.4)),
    ]
    row = collect(records, scaling="weak")[1].iloc[0]
    assert (row["n_reached"], row["time_to_target_s"]) == (2, pytest.approx(4))


def test_a_disturbed_baseline_is_in_the_note():
    busy = {"foreign_cpu": 0.3}
    base = [record_of(1, s, metrics=measured(100, 0.9) | busy) for s in range(2)]
    quiet = [record_of(2, s, metrics=measured(200, 0.9)) for s in range(2)]
    disturbed = [record_of(4, s, metrics=measured(400, 0.9) | busy) for s in range(2)]
    first, beside, last = collect([*base, *quiet, *disturbed], scaling="weak")[1]["note"]
    assert first == last and "30%" in first and "baseline" not in first
    assert "baseline's timing" in beside and "30%" not in beside


@pytest.mark.parametrize(
    ("seeds", "fault"),
    [
        ([{"timing": "shared"}, {"metrics": {"window_s": 0.5}}], "too_short"),
        ([{"metrics": {"throttled_periods": 9}}, {"timing": "shared"}], "shared"),
        ([{"metrics": {"throttled_periods": 9}}, {"provenance": {"device_model": "NVIDIA H100"}}], "several_models"),
        ([{"metrics": {"window_s": 0.5}}, {}], None),  # one seed's timing is valid
    ],
)
def test_a_cell_has_the_first_of_several_faults(seeds, fault):
    records = [
        record_of(1, number, **seed | {"metrics": {"samples_per_s": 1.0} | seed.get("metrics", {})})
        for number, seed in enumerate(seeds)
    ]
    (timing_fault,) = collect(records, scaling="weak")[1]["timing_fault"]
    assert timing_fault == fault or (fault is None and pd.isna(timing_fault))


def test_time_and_cost_to_the_target_equal_hand_computed_values():
    def trial(gpus, seed, reached_s, speed):
        reached = {} if reached_s is None else {"time_to_target_s": reached_s}
        metrics = {"train_s": 30.0, "samples_per_s": speed, "energy_j_per_sample": 2.0, "noise_scale": 40.0 + seed}
        return record_of(gpus, seed, metrics=metrics | reached)

    slow = [trial(1, seed, 12.0, 100) for seed in range(3)]
    fast = [trial(2, seed, 8.0, 200) for seed in range(3)]
    some = [trial(4, seed, reached, 400) for seed, reached in enumerate([2.0, 2.2, None])]
    none = [trial(8, seed, None, 800) for seed in range(3)]
    cells = cells_of([*slow, *fast, *some, *none], report=ReportSection(price_per_gpu_hour=3.6))
    row: Any = cells.loc["2-32-none"]
    # Twice the throughput, 1.5 times as fast to the target: 75% of the samples' worth is left.
    assert row["statistical_efficiency"] == pytest.approx(0.75)
    assert row["time_to_target_expected_s"] == pytest.approx(8)
    assert row["cost_to_target"] == pytest.approx(2 * 8 * 0.001)
    assert row["energy_to_target_j"] == pytest.approx(2 * 200 * 8)
    assert row["noise_scale_samples"] == pytest.approx(41)
    row = cells.loc["4-32-none"]
    assert row["time_to_target_expected_s"] == pytest.approx((2 + 2.2 + 30) / 2)
    assert math.isnan(row["time_to_target_s"])
    row = cells.loc["8-32-none"]
    assert row[["time_to_target_expected_s", "cost_to_target"]].isna().all()


def test_expected_time_includes_seeds_that_missed_the_target():
    """(2 + 30 + 30) s / 1; a cell of one seed has its own time, and one that nobody reached in has none."""

    def trial(gpus, seed, **reached):
        return record_of(gpus, seed, metrics={"train_s": 30.0, "samples_per_s": 100.0} | reached)

    lucky = [trial(1, 0, time_to_target_s=2.0), trial(1, 1), trial(1, 2)]
    cells = cells_of([*lucky, trial(2, 0, time_to_target_s=12.0), trial(4, 0), trial(4, 1)]).set_index("gpus")
    assert cells["time_to_target_expected_s"].tolist() == pytest.approx([62.0, 12.0, math.nan], nan_ok=True)
    assert cells["n_reached"].tolist() == [1, 1, 0]


def cells_of(records, **options):
    return collect(records, scaling="weak", reference_batch_size=32, **options)[1].set_index("cell_id")


def accuracies(gpus, values):
    return [record_of(gpus, seed, metrics={"accuracy": value}) for seed, value in enumerate(values)]


def test_cells_have_a_verdict_of_equivalence_with_the_reference():
    reference = accuracies(1, [0.90, 0.91, 0.92])
    # Differences −.001, .000, .001: error .000577, t(.95, 2) = 2.92, so ±.0017 around 0.
    alike = accuracies(2, [0.899, 0.910, 0.921])
    # Differences −.05, −.06, −.07: ±.0169 around −.06, wholly below −.01.
    worse = accuracies(4, [0.85, 0.85, 0.85])
    cells = cells_of([*reference, *alike, *worse], report=ReportSection(margin=0.01))
    assert list(cells["accuracy_verdict"]) == ["", "equivalent", "worse"]
    narrow = cells_of([*reference, *alike, *worse], report=ReportSection(margin=0.001))
    assert narrow["accuracy_verdict"].iloc[1] == "inconclusive"


NAN = math.nan
OK = pd.DataFrame(
    {
        "cell_id": ["a", "b", "a", "b", "a", "c", "c", "b", "d", "c"],
        "seed": [0, 0, 1, 1, 2, 0, 1, 2, 0, 5],
        "accuracy": [0.90, 0.93, 0.92, 0.97, 0.97, 0.80, 0.90, 0.96, 0.5, 0.82],
    }
)
CELLS = pd.Index(["a", "b", "c", "d", "none"])


def against_a():
    return Differences.of(OK, "accuracy", CELLS, pd.Series(["a"] * len(CELLS), index=CELLS))


def test_by_seed_gives_one_row_of_seeds_per_cell():
    # Of seeds 0, 1, 2 and 5.
    known = [[0.90, 0.92, 0.97, NAN], [0.93, 0.97, 0.96, NAN], [0.80, 0.90, NAN, 0.82], [0.5, NAN, NAN, NAN]]
    wanted = np.array([*known, [NAN] * 4])
    np.testing.assert_array_equal(by_seed(CELLS, OK, "accuracy"), wanted)
    np.testing.assert_array_equal(by_seed(CELLS[[2, 0, 2]], OK, "accuracy"), wanted[[2, 0, 2]])


def test_equal_seeds_are_paired_and_others_use_welch():
    differences = against_a()
    assert differences.same_seeds[:3].tolist() == [True, True, False]
    of = {cell: OK.accuracy[OK.cell_id == cell].to_numpy() for cell in "abc"}
    pairs = scipy.stats.ttest_rel(of["b"], of["a"]).confidence_interval()
    welch = scipy.stats.ttest_ind(of["c"], of["a"], equal_var=False).confidence_interval()
    interval = differences.interval()
    assert (interval.lo[1], interval.hi[1]) == pytest.approx((pairs.low, pairs.high))
    assert (interval.lo[2], interval.hi[2]) == pytest.approx((welch.low, welch.high))
    assert interval.point[:3] == pytest.approx([0.0, of["b"].mean() - of["a"].mean(), of["c"].mean() - of["a"].mean()])


def test_verdicts_agree_with_intervals():
    differences = against_a()
    interval, tested = differences.interval(), differences.tested(np.zeros(1))
    for index in (1, 2):
        half = scipy.stats.t.ppf(0.975, tested[index].freedom) * tested[index].error
        assert tested[index].point == pytest.approx(interval.point[index])
        assert interval.hi[index] - interval.point[index] == pytest.approx(half)
    assert [difference.verdict(0.1) for difference in tested] == ["equivalent", "equivalent", "inconclusive", "", ""]


def test_constant_unpaired_seeds_have_no_error():
    ok = pd.DataFrame(
        {"cell_id": ["a", "a", "b", "b", "b"], "seed": [0, 1, 0, 1, 2], "accuracy": [0.5] * 2 + [0.75] * 3}
    )
    cells = pd.Index(["b"])
    (difference,) = Differences.of(ok, "accuracy", cells, pd.Series(["a"], index=cells)).tested(np.zeros(1))
    assert (difference.point, difference.error, difference.freedom) == pytest.approx((0.25, 0.0, 3.0))


def test_an_accuracy_interval_stays_between_0_and_1():
    values = {0: 0.02, 1: 0.5, 2: 0.98}
    records = [record_of(1, seed, metrics=measured(100, value)) for seed, value in values.items()]
    row: Any = collect(records, scaling="weak")[1].iloc[0]
    assert (row["accuracy_lo"], row["accuracy_hi"]) == (0, 1)  # Student's t alone would give [-0.69, 1.69]


def test_equal_accuracies_have_an_interval_by_their_number_of_samples():
    metrics = measured(100, 1.0, val_accuracy=0.99, test_samples=300, val_samples=300)
    row: Any = collect([record_of(1, seed, metrics=metrics) for seed in range(2)], scaling="weak")[1].iloc[0]
    assert row["accuracy_lo"] == pytest.approx(scipy.stats.beta(600.5, 0.5).ppf(0.025)) and row["accuracy_hi"] == 1
    ends = scipy.stats.beta(594.5, 6.5).ppf([0.025, 0.975])
    assert [row["val_accuracy_lo"], row["val_accuracy_hi"]] == pytest.approx(ends)


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([(Status.OK, ""), (Status.SKIPPED, "budget")], Status.OK),
        ([(Status.OK, ""), (Status.SKIPPED, "phases")], Status.OK),
        ([(Status.OK, ""), (Status.SKIPPED, "early_stop")], Status.SKIPPED),
        ([(Status.OOM, ""), (Status.SKIPPED, "phases")], Status.OOM),
        ([(Status.SKIPPED, "budget"), (Status.SKIPPED, "budget")], Status.SKIPPED),
        ([(Status.OK, ""), (Status.FAILED, "")], Status.FAILED),
    ],
)
def test_a_cell_has_the_worst_status_of_its_seeds_that_ran(ends, status):
    records = [record_of(1, seed, end, skipped_by=rule) for seed, (end, rule) in enumerate(ends)]
    _, cells = collect(records, scaling="weak", reference_batch_size=32, report=ReportSection())
    assert (cells["status"][0], cells["n_seeds"][0]) == (status.value, len(ends))
