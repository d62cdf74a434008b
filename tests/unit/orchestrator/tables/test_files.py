import io
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator.analysis.trials import collect
from orchestrator.store.layout import Layout
from orchestrator.store.record import TrialRecord
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.files import write_tables
from orchestrator.tables.speedup import speedup_markdown
from sweeps.status import Status

RecordOf = Callable[..., TrialRecord]

# 2 gpus: log ratios ln 1.8 and ln 2, mean ln 1.897, half ln(2/1.8)/2 · t(.975, 1) = 0.669; e^±0.669 times 1.897.
SPEEDUP = """\
# Speed-up: demo

Device: NVIDIA H200. 2 seeds per cell.
Weak scaling: compared with the ok cell with the fewest gpus and the same batch per device, or with the \
baseline that the sweep names.
Efficiency: the speed-up as a share of the ideal one, the ratio of the numbers of gpus.
Brackets: 95% intervals (Student's t) of log ratios, paired by seed if both cells have the same ok seeds.
† This timing is not valid; the note says why.

| device batch   | LR rule   | gpus   | global batch   | samples/s              | speed-up             | efficiency  \
 | status         | note                                                  |
|:---------------|:----------|:-------|:---------------|:-----------------------|:---------------------|\
:-------------|:---------------|:------------------------------------------------------|
| 32             | none      | 1      | 32             | 1,000 [1,000, 1,000]   | 1× (baseline)        |             \
 | ok             |                                                       |
| 32             | none      | 2      | 64             | 1,897 [972, 3,706]     | 1.90× [0.97, 3.71]   | 95%         \
 | ok             |                                                       |
| 32             | none      | 4      | 128            | 3,000 [3,000, 3,000] † | 3.00× [3.00, 3.00] † | 75% †       \
 | ok             | timing shared: other trials ran on the same devices   |
| 32             | sqrt      | 2      | 64             | 1,850                  |                      |             \
 | oom, 1 of 2 ok | 1 of 2 seeds oom: CUDA out of memory: 2 \\| 3 &lt;GiB> |
| 32             | sqrt      | 8      | 256            |                        |                      |             \
 | infeasible     | needs 8 ranks; there is room for 4                    |

Why 2 cells are not linear is not known: the trials do not report the parts of a step.

1 cell has no speed-up: there is no ok cell that differs only in its gpus.

Empty in summary.csv: epoch_s (not reported), time_to_target_s (no target, or not reached), energy_j (not measured), \
gpu_util (not measured), power_w (not measured), peak_memory_gb (not measured), cost (no price, or no GPUs).
"""

ACCURACY = """\
# Accuracy: demo

Device: NVIDIA H200. 2 seeds per cell.
On the test set, which is not used to choose cells. ±: half-width of the 95% interval over the ok seeds \
(Student's t); brackets: its ends, if it is asymmetric.
▼ worse, ▲ better than the corresponding cell at the reference batch of 32: the 95% interval of the difference \
excludes 0. 2 comparisons, without correction for their number.

| device batch   | gpus   | global batch   | none                      | sqrt                   |
|:---------------|:-------|:---------------|:--------------------------|:-----------------------|
| 32             | 1      | 32             | 0.950 ± 0.127 (reference) |                        |
| 32             | 2      | 64             | 0.920 ± 0.127 ▼           | 0.940 (oom, 1 of 2 ok) |
| 32             | 4      | 128            | 0.950 ± 0.000             |                        |
| 32             | 8      | 256            |                           | infeasible             |

Worse than at the reference batch:

- 2×32 none: -0.030 [-0.030, -0.030]

Not ok:

- 2×32 sqrt: oom, 1 of 2 ok; 1 of 2 seeds oom: CUDA out of memory: 2 \\| 3 &lt;GiB>
- 8×32 sqrt: infeasible; needs 8 ranks; there is room for 4
"""


@pytest.fixture
def records(record_of: RecordOf) -> list[TrialRecord]:
    def measured(samples_per_s: float, accuracy: float) -> dict[str, float]:
        return {"samples_per_s": samples_per_s, "accuracy": accuracy}

    none = [
        record_of(1, 0, metrics=measured(1000, 0.94)),
        record_of(1, 1, metrics=measured(1000, 0.96)),
        record_of(2, 0, metrics=measured(1800, 0.91)),
        record_of(2, 1, metrics=measured(2000, 0.93)),
        record_of(4, 0, timing="shared", metrics=measured(3000, 0.95)),
        record_of(4, 1, timing="shared", metrics=measured(3000, 0.95)),
    ]
    rule = {"lr_rule": "sqrt"}
    sqrt = [
        record_of(2, 0, metrics=measured(1850, 0.94), **rule),
        record_of(2, 1, Status.OOM, note="CUDA out of memory:\n2 | 3 <GiB>", **rule),
        *(record_of(8, s, Status.INFEASIBLE, note="needs 8 ranks; there is room for 4", **rule) for s in (0, 1)),
    ]
    return none + sqrt


def test_golden_tables(records: list[TrialRecord]) -> None:
    summary = collect(records, scaling="weak", reference_batch_size=32)[1]
    assert speedup_markdown(summary) == SPEEDUP
    assert accuracy_markdown(summary) == ACCURACY


def test_cpus_and_single_seeds_are_told(record_of: RecordOf) -> None:
    records = [record_of(gpus, device="cpu", metrics={"samples_per_s": 100 * gpus}) for gpus in (1, 2)]
    summary = collect(records, scaling="strong", price_per_gpu_hour=2)[1]
    text = speedup_markdown(summary)
    assert (
        "Device: cpu; without GPUs, gpus counts worker processes. 1 seed per cell, so there are no intervals.\n" in text
    )
    assert "Strong scaling: compared with the ok cell with the fewest gpus and the same global batch" in text
    assert accuracy_markdown(summary).endswith("\nNo trial reported an accuracy.\n")
    told = [record_of(gpus, device="cpu", metrics={"accuracy": 0.9}) for gpus in (1, 2)]
    compared = accuracy_markdown(collect(told, scaling="strong")[1])
    assert "Not compared: no ok cell is known to be at the reference batch." in compared


def test_where_no_test_set_was_looked_at_the_accuracy_that_chooses_is_shown(record_of: RecordOf) -> None:
    told = [record_of(gpus, metrics={"val_accuracy": 0.9 + gpus / 100}) for gpus in (1, 2)]
    text = accuracy_markdown(collect(told, scaling="weak")[1])
    assert "No trial reported an accuracy on a test set. This is val_accuracy" in text
    assert "0.910" in text and "0.920" in text
    seeds = [record_of(1, seed, metrics={"val_accuracy": 0.9 + seed / 100}) for seed in (0, 1, 2)]
    assert "0.910 ± 0.025" in accuracy_markdown(collect(seeds, scaling="weak")[1])  # t(2) = 4.303, s = .01


def test_accuracies_after_a_few_steps_are_not_shown_as_if_they_meant_something(record_of: RecordOf) -> None:
    def text(*steps: int, name: str = "accuracy") -> str:
        told = [record_of(2**i, metrics={name: 0.1 + i / 100, "steps": each}) for i, each in enumerate(steps)]
        return accuracy_markdown(collect(told, scaling="weak", reference_batch_size=32)[1])

    for timed_only in (text(2, 9), text(2, 2, name="val_accuracy")):
        assert "0.1" not in timed_only and "after fewer than 10 optimizer steps" in timed_only
    mixed = text(10, 1, 2)
    assert "| 0.100 (reference) |" in mixed and "| 0.110 (1 step)" in mixed and "| 0.120 (2 steps)" in mixed
    assert "fewer" not in mixed


def test_the_largest_loss_stands_beside_the_efficiency_and_what_helps_below(record_of: RecordOf) -> None:
    step = {"step_data_s": 0.0, "step_host_s": 0.0, "step_imbalance_s": 0.0, "step_compute_s": 0.032}
    one = {**step, "step_s": 0.032, "step_communication_s": 0.0, "samples_per_s": 1000}
    two = {**step, "step_s": 0.04, "step_communication_s": 0.008, "samples_per_s": 1600}
    captured = {"step_s": 0.04, "step_data_s": 0.002, "samples_per_s": 3200}
    summary = collect([record_of(g, metrics=m) for g, m in ((1, one), (2, two), (4, captured))], scaling="weak")[1]
    text = speedup_markdown(summary)
    assert "| exchanging gradients (20%) " in text and "| the rest (15%) " in text
    assert "- exchanging gradients: a larger batch per device" in text
    assert "- a captured step (trainable.cuda_graph=on) shows only how long it waits for data" in text


def test_rows_are_in_the_order_of_numbers_and_name_what_varies(record_of: RecordOf) -> None:
    key = "model.width"
    records = [
        record_of(gpus, batch=batch, axes={key: width}, metrics={"samples_per_s": 100})
        for width in (64, 8)
        for batch in (128, 32)
        for gpus in (10, 2)
    ]
    lines = speedup_markdown(collect(records, scaling="weak")[1]).splitlines()
    table = [[cell.strip() for cell in line.split("|")[1:5]] for line in lines if line.startswith("|")]
    assert table[0] == [key, "device batch", "LR rule", "gpus"]
    assert [(int(row[0]), int(row[1]), int(row[3])) for row in table[2:]] == [
        (width, batch, gpus) for width in (8, 64) for batch in (32, 128) for gpus in (2, 10)
    ]


def test_without_a_trial_the_tables_say_so() -> None:
    summary = collect([], scaling="weak")[1]
    assert "No trial has ended yet." in speedup_markdown(summary)
    assert "No trial has ended yet." in accuracy_markdown(summary)


def empty_is_none(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype("object").where(frame.notna(), None).rename_axis(columns=None)


def test_files_hold_the_frames(records: list[TrialRecord], tmp_path: Path) -> None:
    layout = Layout(tmp_path / "demo")
    layout.create()
    trials, summary = collect(records, scaling="weak", reference_batch_size=32)
    written = write_tables(layout, trials, summary)
    assert sorted(path.name for path in written) == sorted(path.name for path in layout.tables.iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    for frame, name in ((trials, "trials"), (summary, "summary")):
        read = pd.read_csv(layout.table(f"{name}.csv"))
        assert list(read.columns) == list(frame.columns)
        for column in ("gpus", "samples_per_s", "accuracy"):
            if column in frame:
                pd.testing.assert_series_equal(read[column], frame[column], check_dtype=False)
        pd.testing.assert_frame_equal(
            empty_is_none(pd.read_parquet(layout.table(f"{name}.parquet"))), empty_is_none(frame)
        )
    assert layout.table("speedup.md").read_text() == SPEEDUP
    assert layout.table("accuracy.md").read_text() == ACCURACY


def test_text_is_no_formula_and_mixed_values_fit_in_parquet(record_of: RecordOf, layout: Layout) -> None:
    records = [
        record_of(1, axes={"=evil": "@SUM(A1)", "width": "auto"}, note="=1+1", metrics={"accuracy": -0.5}),
        record_of(1, axes={"=evil": "fine", "width": 0.5}),
    ]
    write_tables(layout, *collect(records, scaling="weak"))
    trials = pd.read_csv(io.BytesIO(layout.table("trials.csv").read_bytes()))
    assert list(trials["'=evil"]) == ["'@SUM(A1)", "fine"]
    assert trials["note"][0] == "'=1+1"
    assert trials["accuracy"][0] == -0.5
    assert list(pd.read_parquet(layout.table("trials.parquet"))["width"]) == ["auto", "0.5"]


def test_a_cell_that_one_process_timed_says_so(record_of: RecordOf) -> None:
    def cells(process: Callable[[int], str]) -> pd.DataFrame:
        told = {"device_model": "NVIDIA H200"}
        records = [
            record_of(gpus, seed, metrics={"samples_per_s": 100.0 * gpus}, provenance=told | {"process": process(seed)})
            for gpus in (1, 2)
            for seed in (0, 1)
        ]
        return collect(records, scaling="weak")[1]

    assert "In 2 cells one process timed all seeds. Processes differ" in speedup_markdown(cells(lambda seed: "7"))
    assert "one process" not in speedup_markdown(cells(str))


def test_steps_that_hang_on_launches_say_so(record_of: RecordOf) -> None:
    def text(*waits_s: float, **other: Any) -> str:
        measured = [{"samples_per_s": 100.0, "step_s": 0.01, "step_host_s": each} for each in waits_s]
        records = [record_of(gpus, metrics=each, **other) for gpus, each in enumerate(measured, start=1)]
        return speedup_markdown(collect(records, scaling="weak")[1])

    assert "In 1 cell GPUs wait for their processes (40% of a step), mostly for kernel launches" in text(0.0009, 0.004)
    assert "In 2 cells GPUs wait for their processes (up to 40% of a step), mostly for kernel launches" in text(
        0.001, 0.004
    )
    assert "for kernel launches" not in text(0.0009, 0.0)
    assert "for kernel launches" not in text(0.004, device="cpu", provenance={"device_model": "Xeon"})


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"host": "vm", "machine": "0a"}, {"host": "vm", "machine": "0a"}, True),
        ({"host": "vm", "machine": "0a"}, {"host": "vm", "machine": "0b"}, False),
        ({"host": "a", "machine": "0a"}, {"host": "b", "machine": "0a"}, True),  # two containers of one machine
        ({"host": "vm", "machine": "0a"}, {"host": "vm", "machine": "0a", "machines": "0a 0b"}, False),
        ({"machine": "0b", "machines": "0b 0a"}, {"machine": "0a", "machines": "0a 0b"}, True),
        ({"host": "a"}, {"host": "b"}, False),
        ({"host": "vm"}, {"host": "vm", "machine": "0b"}, True),  # the first is of a version that knew names only
        ({}, {"host": "vm"}, None),
    ],
)
def test_cells_of_other_machines_than_their_baselines_are_told_even_of_one_name(
    first: dict[str, str], second: dict[str, str], same: bool | None, record_of: RecordOf
) -> None:
    told = {"device_model": "NVIDIA H200"}
    records = [
        record_of(gpus, metrics={"samples_per_s": 100.0 * gpus}, provenance=told | where)
        for gpus, where in ((1, first), (2, second))
    ]
    cells = collect(records, scaling="weak")[1].set_index("gpus")
    assert cells["same_machines"].astype(object).where(cells["same_machines"].notna(), None)[2] is same
    assert ("1 cell ran on other machines than the baseline" in speedup_markdown(cells.reset_index())) == (
        same is False
    )


def test_an_axis_may_be_called_hosts(record_of: RecordOf) -> None:
    record = record_of(axes={"hosts": 4}, provenance={"host": "vm", "device_model": "H200"})
    cells = collect([record], scaling="weak")[1]
    assert cells["hosts"].tolist() == [4]


@pytest.mark.parametrize(
    ("mhz", "told"), [(1833.0, "In 1 cell GPUs clocked up to 7% lower than in the baseline"), (1950.0, "")]
)
def test_a_lower_clock_than_the_baselines_is_told(mhz: float, told: str, record_of: RecordOf) -> None:
    clocks = {1: 1971.0, 2: mhz}
    records = [record_of(gpus, metrics={"samples_per_s": 1.0, "sm_clock_mhz": clock}) for gpus, clock in clocks.items()]
    text = speedup_markdown(collect(records, scaling="weak")[1])
    assert told in text and ("clocked" in text) == bool(told)
