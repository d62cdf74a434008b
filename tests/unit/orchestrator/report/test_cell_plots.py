import re
from collections.abc import Callable

import pandas as pd
import pytest

from orchestrator.analysis.trials import collect
from orchestrator.report.cell_plots import (
    accuracy,
    efficiency,
    memory,
    speedup,
    speedup_by_batch,
    time_to_target,
    why_not_linear,
)
from orchestrator.report.matplotlib import bars_svg
from orchestrator.report.plot import Plot
from orchestrator.store.record import TrialRecord
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo


def remark_numbers(plot: Plot) -> list[list[int]]:
    """Return the numbers in each remark, so that tests do not depend on the sentences."""
    return [[int(each) for each in re.findall(r"\d+", remark)] for remark in plot.remarks]


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return collect(demo.records(), scaling="weak", reference_batch_size=32)[1]


def test_speedup_has_a_panel_per_rule_and_an_ideal_line(cells: pd.DataFrame) -> None:
    plot = speedup(cells)
    assert [panel.title for panel in plot.panels] == ["LR rule: none", "LR rule: linear", "LR rule: sqrt"]
    assert plot.legend == ("batch per GPU: 32", "batch per GPU: 128", "batch per GPU: 512")
    ideal = (1.0, 2.0, 4.0, 8.0)  # at every count, because a straight line would be too high on a logarithmic axis
    assert all(panel.guides == [(ideal, ideal)] for panel in plot.panels)
    first = plot.panels[0].series[0]
    row = cells[(cells.gpus == 2) & (cells.device_batch_size == 32) & (cells.lr_rule == "none")].iloc[0]
    assert (first.x[1], first.y[1]) == (2, row.speedup)
    assert (first.lo[1], first.hi[1]) == (row.speedup_lo, row.speedup_hi)
    assert first.doubtful == (False, False, True, False) and "timing not valid" in first.tooltips[2]
    assert any(remark.startswith("Hollow") for remark in plot.remarks)


def test_axes_end_at_the_last_cell_with_a_figure(cells: pd.DataFrame) -> None:
    without_8 = cells.assign(speedup=cells["speedup"].where(cells["gpus"] < 8))
    plot = speedup(without_8)
    assert plot.x.ticks == (1, 2, 4) and 4 < plot.y.hi < 5


def test_quarters_of_a_gpu_do_not_stretch_the_ideal(cells: pd.DataFrame) -> None:
    quarters = cells[cells["gpus"] == 1].assign(gpus=0.25, cell_id="quarter", efficiency=4.0, timing_valid=False)
    both = pd.concat([quarters, cells[cells["gpus"] < 4]], ignore_index=True)
    assert 2 < speedup(both).y.hi < 2.5  # two GPUs are the most, and the baselines have one


def test_invalid_outliers_do_not_stretch_the_efficiency_axis(cells: pd.DataFrame) -> None:
    quarter = cells.assign(efficiency=cells["efficiency"].where(cells["timing_valid"].astype(bool), 5.9))
    plot = efficiency(quarter)
    assert plot.y.hi < 1.3 and all(row["timing_valid"] for row in plot.data)
    assert remark_numbers(plot)[0] == [3]
    assert efficiency(quarter.assign(timing_valid=False)).y.hi > 5.9  # where nothing else is there to see


def test_panels_without_a_valid_timing_come_last(cells: pd.DataFrame) -> None:
    plot = speedup(cells.assign(timing_valid=cells["lr_rule"] != "none"))
    assert [panel.title for panel in plot.panels] == ["LR rule: linear", "LR rule: sqrt", "LR rule: none"]


def test_speedup_by_batch_has_a_line_per_gpu_count(cells: pd.DataFrame) -> None:
    (plot,) = speedup_by_batch(cells)
    assert plot.legend == ("GPUs: 2", "GPUs: 4", "GPUs: 8") and plot.x.label == "batch per GPU"
    assert [panel.title for panel in plot.panels] == ["LR rule: none", "LR rule: linear", "LR rule: sqrt"]
    assert plot.panels[0].guides == [((32.0, 512.0), (1.0, 1.0))]
    of_two = cells[(cells.gpus == 2) & (cells.lr_rule == "none")].sort_values("device_batch_size")
    first = plot.panels[0].series[0]
    assert (first.x, first.y, first.lo) == ((32, 128, 512), tuple(of_two.speedup), tuple(of_two.speedup_lo))
    assert len(plot.data) == (cells["speedup"].notna() & (cells["gpus"] > 1)).sum()


def test_a_gpu_count_looks_the_same_in_every_plot(cells: pd.DataFrame) -> None:
    (by_batch,) = speedup_by_batch(cells)
    with_memory = memory(cells.assign(peak_memory_gb=1.0))
    looks = dict(zip(with_memory.legend, with_memory.looks, strict=True))
    assert looks == {"GPUs: 1": 0, "GPUs: 2": 1, "GPUs: 4": 2, "GPUs: 8": 3}
    assert dict(zip(by_batch.legend, by_batch.looks, strict=True)) == {each: looks[each] for each in by_batch.legend}
    assert [series.place for series in by_batch.panels[0].series] == [1, 2, 3]


@pytest.mark.parametrize("left", [{"device_batch_size": [32, 512]}, {"gpus": [1]}])
def test_few_batches_make_no_plot_by_batch(cells: pd.DataFrame, left: dict[str, list[int]]) -> None:
    ((column, values),) = left.items()
    assert speedup_by_batch(cells[cells[column].isin(values)]) == []


def test_every_drawn_point_is_in_the_data(cells: pd.DataFrame) -> None:
    for plot, column in (
        (speedup(cells), "speedup"),
        (efficiency(cells), "efficiency"),
        (accuracy(cells), "accuracy"),
    ):
        drawn = sorted(y for panel in plot.panels for each in panel.series for y in each.y)
        assert drawn == sorted(row[column] for row in plot.data)
        assert len(drawn) == cells[column].notna().sum()


def test_cells_that_missed_the_target_are_not_drawn(cells: pd.DataFrame) -> None:
    plot = time_to_target(cells)
    assert any("1×128 none" in remark for remark in plot.remarks)
    assert len(plot.data) == cells["time_to_target_s"].notna().sum() < len(cells)


def test_memory_is_the_largest_over_rules(cells: pd.DataFrame) -> None:
    plot = memory(cells)
    assert len(plot.panels) == 1 and len(plot.panels[0].series) == 4
    assert plot.panels[0].series[0].y == pytest.approx((1.4 + 0.021 * 32, 1.4 + 0.021 * 128, 1.4 + 0.021 * 512))


def test_memory_has_bars_if_groups_have_one_batch(cells: pd.DataFrame) -> None:
    one_each = cells[(cells.device_batch_size == 32) | ((cells.gpus == 1) & (cells.device_batch_size == 128))]
    plot = memory(one_each)
    assert not plot.panels and len(plot.bars) == len(plot.data) == 5
    assert plot.bars[0].label == "1×32"
    assert plot.bars[1].parts == pytest.approx((1.4 + 0.021 * 128,))


def test_without_gpus_labels_name_processes() -> None:
    records = [demo.replaced(record, device="cpu") for record in demo.records()]
    plot = speedup(collect(records, scaling="weak")[1])
    assert plot.legend[0] == "batch per process: 32" and plot.x.label == "processes"


@pytest.mark.parametrize("draw", [speedup, efficiency, accuracy, time_to_target, memory])
def test_a_plot_without_data_has_a_reason(draw: object) -> None:
    record = demo.replaced(demo.records()[0], metrics={})
    plot = draw(collect([record], scaling="weak")[1])  # type: ignore[operator]
    assert isinstance(plot, Plot) and not plot.is_drawn and plot.absent.endswith(".")


def test_one_gpu_count_has_no_speedup(cells: pd.DataFrame) -> None:
    assert speedup(cells[cells.gpus == 1]).absent


def test_remarks_count_undrawn_series_and_panels() -> None:
    records = [
        demo.replaced(
            record, cell_id=f"{record.cell_id}-{extra}", device_batch_size=batch, axes={**record.axes, "w": extra}
        )
        for record in demo.records()[:1]
        for batch in range(1, 21)
        for extra in range(15)
    ]
    records = [demo.replaced(each, cell_id=str(n), trial_id=str(n)) for n, each in enumerate(records)]
    more = [demo.replaced(each, gpus=2, cell_id=f"{each.cell_id}b", trial_id=f"{each.trial_id}b") for each in records]
    plot = speedup(collect(records + more, scaling="weak")[1])
    assert len(plot.panels) == 12 and len(plot.legend) == 8
    assert plot.legend[0].endswith(" 1") and plot.legend[-1].endswith(" 20")
    assert [8, 20] in remark_numbers(plot) and [12, 15] in remark_numbers(plot)
    assert len(plot.data) == 600


def test_the_legend_leaves_out_values_of_undrawn_panels(cells: pd.DataFrame) -> None:
    panels = [cells.assign(lr_rule=f"{n}-{rule}") for n in range(4) for rule in cells["lr_rule"].unique()]
    last = cells[cells["device_batch_size"] == 512].assign(lr_rule="last", device_batch_size=1024)
    plot = speedup(pd.concat([*panels, last], ignore_index=True))
    assert [12, 13] in remark_numbers(plot)
    assert plot.legend == ("batch per GPU: 32", "batch per GPU: 128", "batch per GPU: 512")


def test_groups_of_baselines_alone_have_no_panel() -> None:
    records = [
        record_of(gpus, axes={"model": model}, metrics={"samples_per_s": 100.0 * gpus})
        for gpus, model in ((1, "a"), (2, "a"), (1, "b"))
    ]
    cells = collect(records, scaling="weak")[1]
    for plot in (speedup(cells), efficiency(cells)):
        assert [panel.title for panel in plot.panels] == ["model: a"]
        assert len(plot.remarks) == 1 and "baseline" in plot.remarks[0]


def test_a_remark_counts_intervals_beyond_the_axis() -> None:
    def drawn(*accuracies: list[float]) -> Plot:
        records = [
            record_of(1, seed, batch=32 * (place + 1), metrics={"accuracy": value})
            for place, values in enumerate(accuracies)
            for seed, value in enumerate(values)
        ]
        return accuracy(collect(records, scaling="weak")[1])

    assert drawn([0.90, 0.91, 0.92], [0.80, 0.80, 0.80]).remarks == []  # .91 ± .025; the axis ends at .965
    assert remark_numbers(drawn([0.80, 0.91, 0.98], [0.85, 0.85, 0.85])) == [[1]]  # .897 ± .226


def test_without_test_accuracy_validation_accuracy_is_drawn() -> None:
    known = [record_of(1, seed, metrics={"val_accuracy": 0.9 + seed / 100}) for seed in (0, 1, 2)]
    drawn = accuracy(collect(known, scaling="weak")[1])
    assert drawn.is_drawn and drawn.y.label == "validation accuracy"
    series = drawn.panels[0].series[0]
    assert series.y == pytest.approx((0.91,)) and series.lo == pytest.approx((0.91 - 0.02484,), abs=1e-5)
    on_test = [record_of(1, metrics={"val_accuracy": 0.9, "accuracy": 0.8})]
    assert accuracy(collect(on_test, scaling="weak")[1]).panels[0].series[0].y == (0.8,)


def test_speedups_timed_by_one_process_have_a_remark() -> None:
    def remarks(process: Callable[[int], str]) -> str:
        records = [
            record_of(g, s, metrics={"samples_per_s": 100.0 * g}, provenance={"process": process(s)})
            for g in (1, 2)
            for s in (0, 1)
        ]
        return " ".join(speedup(collect(records, scaling="weak")[1]).remarks)

    assert "workers=per_seed" in remarks(lambda seed: "7") and "workers=per_seed" not in remarks(str)


def test_the_ideal_starts_from_a_baseline_in_another_panel() -> None:
    def trial(gpus: int, strategy: str, rate: float) -> TrialRecord:
        return record_of(
            gpus, 0, axes={"strategy": strategy}, metrics={"samples_per_s": rate}, cell_id=f"{strategy}{gpus}"
        )

    records = [trial(1, "ddp", 100.0), trial(2, "ddp", 190.0), trial(2, "data_parallel", 60.0)]
    cells = collect(records, scaling="weak", baseline={"gpus": 1, "strategy": "ddp"})[1]
    guides = {panel.title: panel.guides for panel in speedup(cells).panels}
    assert len(guides) == 2 and all(each == [((1.0, 2.0), (1.0, 2.0))] for each in guides.values())


STEP = {"step_s": 1.0, "step_data_s": 0.1, "step_host_s": 0.1, "step_communication_s": 0.0, "step_imbalance_s": 0.0}

CAPTURED = {"step_s": 1.0, "step_data_s": 0.1}


def test_a_bar_adds_up_to_the_ideal_speedup() -> None:
    one, other = demo.records()[0], demo.records()[27 + 9]
    metrics = {**STEP, "step_compute_s": 0.8, "samples_per_s": 1000.0}
    waiting = {**metrics, "samples_per_s": 1600.0, "step_communication_s": 0.2, "step_compute_s": 0.64}
    same = {"device_batch_size": 32, "lr_rule": "none", "seed": 0}
    records = [
        demo.replaced(one, gpus=1, global_batch_size=32, metrics=metrics, **same),
        demo.replaced(other, gpus=2, global_batch_size=64, metrics=waiting, status=one.status, note="", **same),
    ]
    plot = why_not_linear(collect(records, scaling="weak")[1])
    assert len(plot.bars) == 1 and sum(plot.bars[0].parts) == pytest.approx(1)
    assert plot.bars[0].parts[0] == pytest.approx(0.8)
    assert dict(zip(plot.legend, plot.bars[0].parts, strict=True))["exchanging gradients"] == pytest.approx(0.2)
    assert any("exchanging gradients" in remark for remark in plot.remarks)
    assert "2×32" in bars_svg(plot).decode()


def test_lost_speedup_needs_the_parts_of_a_step() -> None:
    assert not why_not_linear(collect(demo.records()[:3], scaling="weak")[1]).is_drawn


def test_captured_steps_show_only_their_known_parts() -> None:
    one, other = demo.records()[0], demo.records()[27 + 9]
    same = {"device_batch_size": 32, "lr_rule": "none", "seed": 0, "status": one.status, "note": ""}
    records = [
        demo.replaced(one, gpus=1, global_batch_size=32, metrics={**CAPTURED, "samples_per_s": 1000.0}, **same),
        demo.replaced(other, gpus=2, global_batch_size=64, metrics={**CAPTURED, "samples_per_s": 1600.0}, **same),
    ]
    plot = why_not_linear(collect(records, scaling="weak")[1])
    drawn = dict(zip(plot.legend, plot.bars[0].parts, strict=True))
    assert (drawn["kept"], drawn["the rest"]) == (pytest.approx(0.8), pytest.approx(0.18))
    assert any("captured" in remark for remark in plot.remarks)
    assert "2×32" in bars_svg(plot).decode()
