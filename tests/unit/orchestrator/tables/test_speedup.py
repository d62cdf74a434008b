import pandas as pd
import pytest

from orchestrator.config.settings import ReportSection
from orchestrator.tables.speedup import one_process, speedup_frame, speedup_markdown
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.tables.markdown import table_rows


def test_speedups_have_intervals_baselines_and_daggers(records):
    text = speedup_markdown(collect(records, scaling="weak", reference_batch_size=32)[1])
    rows = {row["cell"]: row for row in table_rows(text)}
    columns = ("global batch", "samples/s", "scaling", "efficiency", "status")
    # 2 gpus: log ratios ln 1.8 and ln 2, mean ln 1.897, half ln(2/1.8)/2 · t(.975, 1) = 0.669; e^±0.669 times 1.897.
    assert {cell: tuple(row[column] for column in columns) for cell, row in rows.items()} == {
        "1×32 none": ("32", "1,000 [1,000, 1,000]", "1× (baseline)", "", "ok"),
        "2×32 none": ("64", "1,897 [972, 3,706]", "1.90× [0.97, 3.71]", "95%", "ok"),
        "4×32 none": ("128", "3,000 [3,000, 3,000] †", "3.00× [3.00, 3.00] †", "75% †", "ok"),
        "2×32 sqrt": ("64", "1,850", "1.85×", "92%", "oom, 1 of 2 ok"),
        "8×32 sqrt": ("256", "", "", "", "infeasible"),
    }
    assert list(rows) == ["1×32 none", "2×32 none", "4×32 none", "2×32 sqrt", "8×32 sqrt"]
    assert "2 \\| 3 &lt;GiB>" in rows["2×32 sqrt"]["note"]
    for column in ("epoch_s", "time_to_target_s", "energy_j", "gpu_util", "power_w", "peak_memory_gb", "cost"):
        assert f"{column} (" in text


def test_speed_of_language_models_is_in_tokens():
    metrics = {"samples_per_s": 50.0, "sequence_length": 8}
    [row] = speedup_frame(collect([record_of(seed=s, metrics=metrics) for s in (0, 1)], scaling="weak")[1]).to_dict(
        "records"
    )
    assert row["tokens/s"] == "400 [400, 400]" and "samples/s" not in row


def test_document_names_devices_seeds_and_scaling():
    records = [record_of(gpus, device="cpu", metrics={"samples_per_s": 100 * gpus}) for gpus in (1, 2)]
    text = speedup_markdown(collect(records, scaling="strong", report=ReportSection(price_per_gpu_hour=2))[1])
    assert "Device: cpu;" in text and "1 seed per cell" in text and "Strong scaling:" in text


def test_largest_loss_has_its_remedy():
    step = {"step_data_s": 0.0, "step_host_s": 0.0, "step_imbalance_s": 0.0, "step_compute_s": 0.032}
    one = {**step, "step_s": 0.032, "step_communication_s": 0.0, "samples_per_s": 1000}
    two = {**step, "step_s": 0.04, "step_communication_s": 0.008, "samples_per_s": 1600}
    captured = {"step_s": 0.04, "step_data_s": 0.002, "samples_per_s": 3200}
    cells = collect([record_of(g, metrics=m) for g, m in ((1, one), (2, two), (4, captured))], scaling="weak")[1]
    assert speedup_frame(cells)["lost most to"].tolist() == ["", "exchanging gradients (20%)", "the rest (15%)"]
    remedies = [line for line in speedup_markdown(cells).splitlines() if line.startswith("- ")]
    assert "exchanging gradients" in remedies[0] and "trainable.cuda_graph=off" in remedies[1]


def test_rows_follow_numbers_and_labels_name_varying_axes():
    records = [
        record_of(gpus, batch=batch, axes={"model.width": width}, metrics={"samples_per_s": 100})
        for width in (64, 8)
        for batch in (128, 32)
        for gpus in (10, 2)
    ]
    assert speedup_frame(collect(records, scaling="weak")[1])["cell"].tolist() == [
        f"{gpus}×{batch} none, width={width}" for width in (8, 64) for batch in (32, 128) for gpus in (2, 10)
    ]


def test_document_without_trials_is_short():
    assert speedup_markdown(collect([], scaling="weak")[1]).startswith("# Scaling\n\n")


@pytest.mark.parametrize(("processes", "cells"), [(("7", "7"), 2), (("0", "1"), 0)])
def test_cells_timed_by_one_process_are_counted(processes, cells):
    records = [
        record_of(gpus, seed, metrics={"samples_per_s": 100.0 * gpus}, provenance={"process": process})
        for gpus in (1, 2)
        for seed, process in enumerate(processes)
    ]
    told = one_process(collect(records, scaling="weak")[1])
    assert [line.startswith(f"In {cells} cells ") for line in told] == [True] * bool(cells)


@pytest.mark.parametrize(
    ("waits_s", "other", "told"),
    [
        ((0.0009, 0.004), {}, ("In 1 cell ", "(40% ")),
        ((0.001, 0.004), {}, ("In 2 cells ", "(up to 40% ")),
        ((0.0009, 0.0), {}, ()),
        ((0.004,), {"device": "cpu", "provenance": {"device_model": "Xeon"}}, ()),
    ],
)
def test_launch_bound_steps_are_counted(waits_s, other, told):
    measured = [{"samples_per_s": 100.0, "step_s": 0.01, "step_host_s": wait} for wait in waits_s]
    records = [record_of(gpus, metrics=cell_metrics, **other) for gpus, cell_metrics in enumerate(measured, start=1)]
    text = speedup_markdown(collect(records, scaling="weak")[1])
    assert all(phrase in text for phrase in told) and ("trainable.cuda_graph=on" in text) == bool(told)


@pytest.mark.parametrize(("host", "told"), [("vm", False), ("other", True)])
def test_cells_on_other_machines_than_the_baseline_are_counted(host, told):
    about = [{"device_model": "NVIDIA H200", "host": name} for name in ("vm", host)]
    records = [record_of(g, metrics={"samples_per_s": 100.0 * g}, provenance=about[g - 1]) for g in (1, 2)]
    assert ("(same_machines)" in speedup_markdown(collect(records, scaling="weak")[1])) == told


def test_an_axis_may_be_called_hosts():
    record = record_of(axes={"hosts": 4}, provenance={"host": "vm", "device_model": "H200"})
    assert collect([record], scaling="weak")[1]["hosts"].tolist() == [4]


@pytest.mark.parametrize(("mhz", "told"), [(1833.0, " up to 7% lower"), (1950.0, "")])
def test_clocks_below_the_baseline_are_reported(mhz, told):
    clocks = {1: 1971.0, 2: mhz}
    records = [record_of(gpus, metrics={"samples_per_s": 1.0, "sm_clock_mhz": clock}) for gpus, clock in clocks.items()]
    text = speedup_markdown(collect(records, scaling="weak")[1])
    assert told in text and ("gpu_clock_mhz" in text) == bool(told)


def test_hostile_sweep_names_stay_text():
    cells: pd.DataFrame = collect([record_of(sweep="a|<b>")], scaling="weak")[1]
    assert "a\\|&lt;b>" in speedup_markdown(cells)
