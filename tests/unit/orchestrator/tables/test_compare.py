import math

import pytest

from orchestrator.config.request import VAL_ACCURACY as VAL
from orchestrator.config.request import Metric
from orchestrator.config.settings import CompareSection
from orchestrator.tables.compare import compared, comparison_markdown
from sweeps.errors import ConfigError
from sweeps.status import Status
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.requests import request
from tests.unit.orchestrator.tables.markdown import table_rows


def results(factor, *, torch, cells, oom=False):
    def trial(gpus, seed):
        speed = 100 * gpus * (factor if gpus == 2 else 1) * math.exp(0.01 * (seed - 1))
        metrics = {"samples_per_s": speed, "accuracy": 0.9 + 0.01 * seed - (0.02 if factor > 1 else 0)}
        about = {"device_model": "NVIDIA H200", "torch": torch}
        # Another version of the code has other identities.
        return record_of(gpus, seed, metrics=metrics, provenance=about, cell_id=f"{torch}-{gpus}")

    records = [trial(gpus, seed) for gpus in cells for seed in range(3)]
    last = record_of(8, 0, Status.OOM if oom else Status.OK, cell_id=f"{torch}-8", provenance={"torch": torch})
    return collect([*records, last], scaling="weak", reference_batch_size=32)


def test_changed_cells_come_first_with_intervals():
    this = results(1.5, torch="2.15", cells=[1, 2], oom=True)
    other = results(1.0, torch="2.14", cells=[1, 2, 4])
    told = comparison_markdown(this, other, names=("results/a", "results/b|<x>"), metric=VAL)
    rows = table_rows(told)
    # Both samples have a standard deviation of .01: ± t(.975, 4) · .01 · √(2/3) = ± .02267 in the logarithm.
    half = 2.7764451 * 0.01 * math.sqrt(2 / 3)
    lo, hi = 1.5 * math.exp(-half), 1.5 * math.exp(half)
    assert tuple(rows[0].values()) == (
        *("2×32 none", "64", f"1.50× [{lo:.2f}, {hi:.2f}]", "-0.020 [-0.020, -0.020]", "speed, accuracy", "ok"),
    )
    assert rows[1]["throughput, this / other"] == f"1.00× [{math.exp(-half):.2f}, {math.exp(half):.2f}]"
    assert rows[2]["status"] == "oom; other: ok"
    assert "throughput in 1 of 2" in told and "accuracy in 2 of 2" in told
    assert "- torch: 2.15; other: 2.14" in told
    assert "Only in results/b\\|&lt;x>: 1 cell." in told


def test_the_metric_of_choice_is_compared():
    def side(worse):
        losses = [{"samples_per_s": 100.0 + s, "val_loss": 2 + s + worse, "val_accuracy": 0.5} for s in range(3)]
        return collect([record_of(1, s, metrics=seed_metrics) for s, seed_metrics in enumerate(losses)], scaling="weak")

    loss = Metric(name="val_loss", higher_is_better=False)
    told = comparison_markdown(side(0.1), side(0.0), names=("a", "b"), metric=loss)
    assert table_rows(told)[0]["validation loss, this − other"] == "+0.100 [+0.100, +0.100]"
    assert "accurac" not in told


def test_a_machine_that_is_faster_as_a_whole_marks_no_cell():
    def side(faster, *cells):
        records = [
            record_of(1, s, batch=32 * 2**at, metrics={"samples_per_s": 100 * faster * cell * math.exp(s * 0.002)})
            for at, cell in enumerate(cells)
            for s in range(3)
        ]
        return collect(records, scaling="weak")

    then = side(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    told = comparison_markdown(side(1.03, 1.0, 0.999, 1.001, 1.0, 1.001), then, names=("a", "b"), metric=VAL)
    assert "throughput in 0 of 5" in told and "share a factor of 1.03× [" in told
    told = comparison_markdown(side(1.03, 1.0, 0.999, 1.2, 1.0, 1.001), then, names=("a", "b"), metric=VAL)
    assert "throughput in 1 of 5" in told
    first = table_rows(told)[0]
    assert (first["cell"], first["changed"]) == ("1×128 none", "speed")
    assert first["over the shared factor"].startswith("1.20× [")
    few = comparison_markdown(side(1.03, 1.0, 1.0, 1.0), side(1.0, 1.0, 1.0, 1.0), names=("a", "b"), metric=VAL)
    assert "throughput in 3 of 3" in few and "fewer than 4 cells" in few


def test_an_invalid_timing_is_shown_but_not_judged():
    def side(rate, timing):
        records = [
            record_of(1, s, metrics={"samples_per_s": rate * math.exp(s / 100)}, timing=timing) for s in range(3)
        ]
        return collect(records, scaling="weak")

    sound = comparison_markdown(side(200, "device"), side(100, "device"), names=("a", "b"), metric=VAL)
    assert "throughput in 1 of 1" in sound and "†" not in sound and "2.00× [" in sound
    packed = comparison_markdown(side(200, "shared"), side(100, "device"), names=("a", "b"), metric=VAL)
    assert "throughput in 0 of 0" in packed
    assert [row["throughput, this / other"] for row in table_rows(packed)] == ["2.00× †"]


def test_cells_of_an_axis_of_one_side_are_not_compared():
    plain = collect([record_of(g, metrics={"samples_per_s": 100.0}) for g in (1, 2)], scaling="weak")
    models = [record_of(1, axes={"model": name}, metrics={"samples_per_s": 90.0}) for name in ("a", "b")]
    other = collect([*models, record_of(2, axes={"model": "a"}, metrics={"samples_per_s": 90.0})], scaling="weak")
    told = comparison_markdown(plain, other, names=("one", "two"), metric=VAL)
    assert "1 cell is in both." in told and "1.11×" in told and "Only in one: 1 cell." in told
    assert "model in two" in told
    assert "Not compared" not in comparison_markdown(plain, plain, names=("one", "two"), metric=VAL)


def test_equal_counts_are_no_difference():
    all_tell = [record_of(1, provenance={"cpu_cores": 64}), record_of(2, provenance={"cpu_cores": 64})]
    one_tells = [record_of(1, provenance={"cpu_cores": 64}), record_of(2, provenance={})]
    both = [collect(records, scaling="weak") for records in (all_tell, one_tells)]
    assert "cpu_cores" not in comparison_markdown(*both, names=("a", "b"), metric=VAL)


def test_results_without_common_cells_have_no_table():
    this = collect([record_of(1, 0)], scaling="weak")
    other = collect([record_of(2, 0)], scaling="weak")
    told = comparison_markdown(this, other, names=("a", "b"), metric=VAL)
    assert "No cell" in told and "Only in a: 1 cell." in told


def test_differences_of_configs_come_before_the_cells():
    this = collect([record_of(1, 0)], scaling="weak")
    asked = ["config.budget.epochs: 10 → 20", *(f"config.model.x{n}: 1 → 2" for n in range(13))]
    told = comparison_markdown(this, this, names=("a", "b"), differences=asked, metric=VAL)
    lines = told.partition("configurations differ (other → this):\n\n")[2].partition("\n\n")[0].splitlines()
    assert (
        lines[0] == "- config.budget.epochs: 10 → 20" and lines[-1] == "- … and 2 more differences" and len(lines) == 13
    )
    assert told.index("differ (other") < told.index("1 cell is in both")
    assert " more" not in comparison_markdown(this, this, names=("a", "b"), differences=asked[:12], metric=VAL)
    assert "differ (other" not in comparison_markdown(this, this, names=("a", "b"), metric=VAL)


def test_missing_results_are_errors(tmp_path):
    def errors(compare_with):
        with pytest.raises(ConfigError) as caught:
            compared(request(compare=CompareSection(with_=compare_with), results_dir=tmp_path, name="mine"))
        return caught.value.errors[0]

    assert "compare.with" in errors(None)
    assert "no results" in errors(str(tmp_path / "none"))
    (tmp_path / "two" / "a").mkdir(parents=True)
    (tmp_path / "two" / "a" / "journal.jsonl").touch()
    assert f"choose {tmp_path}/two/a" in errors(str(tmp_path / "two"))


def test_without_test_accuracy_validation_accuracy_is_compared():
    def side(chosen_by, **further):
        records = [
            record_of(1, s, metrics={"samples_per_s": 100.0 + s, "val_accuracy": chosen_by + s / 100, **further})
            for s in range(3)
        ]
        return collect(records, scaling="weak")

    told = comparison_markdown(side(0.92), side(0.9), names=("a", "b"), metric=VAL)
    assert table_rows(told)[0]["validation accuracy, this − other"] == "+0.020 [+0.020, +0.020]"
    assert "validation accuracy in 1 of 1" in comparison_markdown(
        side(0.92), side(0.9, accuracy=0.7), names=("a", "b"), metric=VAL
    )
