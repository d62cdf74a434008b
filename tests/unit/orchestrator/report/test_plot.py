import math
from collections.abc import Callable

import pandas as pd
import pytest

from orchestrator.analysis.trials import collect
from orchestrator.report.curve_plots import MOST_POINTS, loss
from orchestrator.report.plot import Plot, decade_axis, epoch_axis, fewer, power_axis
from orchestrator.report.plots import accuracy, efficiency, memory, speedup, speedup_by_batch, time_to_target
from orchestrator.store.record import TrialRecord
from orchestrator.text.figures import one_line
from tests.unit.orchestrator.report import demo

RecordOf = Callable[..., TrialRecord]


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return collect(demo.records(), scaling="weak", reference_batch_size=32)[1]


def test_speedup_has_a_panel_a_rule_a_line_a_batch_and_the_ideal(cells: pd.DataFrame) -> None:
    plot = speedup(cells)
    assert [panel.title for panel in plot.panels] == ["LR rule: none", "LR rule: linear", "LR rule: sqrt"]
    assert plot.legend == ("batch per GPU: 32", "batch per GPU: 128", "batch per GPU: 512")
    ideal = (
        1.0,
        2.0,
        4.0,
        8.0,
    )  # at every count: straight from end to end it would be too high between, over a log axis
    assert all(panel.guides == [(ideal, ideal)] for panel in plot.panels)
    first = plot.panels[0].series[0]
    row = cells[(cells.gpus == 2) & (cells.device_batch_size == 32) & (cells.lr_rule == "none")].iloc[0]
    assert (first.x[1], first.y[1]) == (2, row.speedup)
    assert (first.lo[1], first.hi[1]) == (row.speedup_lo, row.speedup_hi)
    assert first.doubtful == (False, False, True, False) and "timing not valid" in first.tooltips[2]
    assert "Hollow points" in " ".join(plot.remarks)


def test_axes_end_where_the_cells_do_that_have_a_figure(cells: pd.DataFrame) -> None:
    without_8 = cells.assign(speedup=cells["speedup"].where(cells["gpus"] < 8))
    plot = speedup(without_8)
    assert plot.x.ticks == (1, 2, 4) and 4 < plot.y.hi < 5


def test_quarters_of_a_gpu_do_not_stretch_the_ideal(cells: pd.DataFrame) -> None:
    quarters = cells[cells["gpus"] == 1].assign(gpus=0.25, cell_id="quarter", efficiency=4.0, timing_valid=False)
    both = pd.concat([quarters, cells[cells["gpus"] < 4]], ignore_index=True)
    assert 2 < speedup(both).y.hi < 2.5  # two GPUs are the most, and the baselines have one


def test_invalid_timings_far_above_all_others_leave_the_axis_of_efficiency_alone(cells: pd.DataFrame) -> None:
    quarter = cells.assign(efficiency=cells["efficiency"].where(cells["timing_valid"].astype(bool), 5.9))
    plot = efficiency(quarter)
    assert plot.y.hi < 1.3 and all(row["timing_valid"] for row in plot.data)
    assert "3 cells are far above all others and not drawn, because the timing is not valid." in plot.remarks
    assert efficiency(quarter.assign(timing_valid=False)).y.hi > 5.9  # where nothing else is there to see


def test_panels_without_a_valid_timing_come_last(cells: pd.DataFrame) -> None:
    plot = speedup(cells.assign(timing_valid=cells["lr_rule"] != "none"))
    assert [panel.title for panel in plot.panels] == ["LR rule: linear", "LR rule: sqrt", "LR rule: none"]


def test_speedup_by_batch_has_a_line_a_gpu_count_and_no_baseline(cells: pd.DataFrame) -> None:
    (plot,) = speedup_by_batch(cells)
    assert plot.legend == ("GPUs: 2", "GPUs: 4", "GPUs: 8") and plot.x.label == "batch per GPU"
    assert [panel.title for panel in plot.panels] == ["LR rule: none", "LR rule: linear", "LR rule: sqrt"]
    assert plot.panels[0].guides == [((32.0, 512.0), (1.0, 1.0))]
    of_two = cells[(cells.gpus == 2) & (cells.lr_rule == "none")].sort_values("device_batch_size")
    first = plot.panels[0].series[0]
    assert (first.x, first.y, first.lo) == ((32, 128, 512), tuple(of_two.speedup), tuple(of_two.speedup_lo))
    assert len(plot.data) == (cells["speedup"].notna() & (cells["gpus"] > 1)).sum()


def test_a_number_of_gpus_looks_the_same_in_every_plot(cells: pd.DataFrame) -> None:
    (by_batch,) = speedup_by_batch(cells)
    with_memory = memory(cells.assign(peak_memory_gb=1.0))
    looks = dict(zip(with_memory.legend, with_memory.looks, strict=True))
    assert looks == {"GPUs: 1": 0, "GPUs: 2": 1, "GPUs: 4": 2, "GPUs: 8": 3}
    assert dict(zip(by_batch.legend, by_batch.looks, strict=True)) == {each: looks[each] for each in by_batch.legend}
    assert [series.place for series in by_batch.panels[0].series] == [1, 2, 3]


@pytest.mark.parametrize("left", [{"device_batch_size": [32, 512]}, {"gpus": [1]}])
def test_two_batches_or_nothing_scaled_make_no_plot_by_batch(cells: pd.DataFrame, left: dict[str, list[int]]) -> None:
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


def test_a_cell_that_missed_the_target_is_told_and_not_drawn(cells: pd.DataFrame) -> None:
    plot = time_to_target(cells)
    assert any("not every seed reached the target" in remark for remark in plot.remarks)
    assert len(plot.data) == cells["time_to_target_s"].notna().sum() < len(cells)


def test_memory_is_the_largest_over_rules(cells: pd.DataFrame) -> None:
    plot = memory(cells)
    assert len(plot.panels) == 1 and len(plot.panels[0].series) == 4
    assert plot.panels[0].series[0].y == pytest.approx((1.4 + 0.021 * 32, 1.4 + 0.021 * 128, 1.4 + 0.021 * 512))


def test_memory_of_cells_of_one_batch_each_is_bars(cells: pd.DataFrame) -> None:
    one_each = cells[(cells.device_batch_size == 32) | ((cells.gpus == 1) & (cells.device_batch_size == 128))]
    plot = memory(one_each)
    assert not plot.panels and len(plot.bars) == len(plot.data) == 5
    assert plot.bars[0].label == "1×32"
    assert plot.bars[1].parts == pytest.approx((1.4 + 0.021 * 128,))


def test_without_gpus_workers_are_counted() -> None:
    records = [demo.replaced(record, device="cpu") for record in demo.records()]
    plot = speedup(collect(records, scaling="weak")[1])
    assert plot.legend[0] == "batch per process: 32" and plot.x.label == "processes"


@pytest.mark.parametrize("draw", [speedup, efficiency, accuracy, time_to_target, memory])
def test_nothing_to_draw_is_said(draw: object) -> None:
    record = demo.replaced(demo.records()[0], metrics={})
    plot = draw(collect([record], scaling="weak")[1])  # type: ignore[operator]
    assert isinstance(plot, Plot) and not plot.is_drawn and plot.absent.endswith(".")


def test_one_gpu_count_is_no_scaling(cells: pd.DataFrame) -> None:
    assert speedup(cells[cells.gpus == 1]).absent.startswith("All cells that are ok have the same number of GPUs")


def test_more_series_and_panels_than_can_be_told_apart_are_told() -> None:
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
    assert "8 of 20 values of batch per GPU are drawn; the CSV file has all of them." in plot.remarks
    assert "12 of 15 panels are drawn; the CSV file has all of them." in plot.remarks
    assert len(plot.data) == 600


def test_the_legend_names_nothing_that_only_undrawn_panels_have(cells: pd.DataFrame) -> None:
    panels = [cells.assign(lr_rule=f"{n}-{rule}") for n in range(4) for rule in cells["lr_rule"].unique()]
    last = cells[cells["device_batch_size"] == 512].assign(lr_rule="last", device_batch_size=1024)
    plot = speedup(pd.concat([*panels, last], ignore_index=True))
    assert "12 of 13 panels are drawn; the CSV file has all of them." in plot.remarks
    assert plot.legend == ("batch per GPU: 32", "batch per GPU: 128", "batch per GPU: 512")


def test_fewer_keeps_both_ends() -> None:
    kept, remarks = fewer(list(range(100)), "gpus")
    assert (kept[0], kept[-1], len(kept)) == (0, 99, 8) and remarks
    assert fewer([1, 2], "gpus") == ([1, 2], [])


def test_axes_hold_all_values() -> None:
    axis = power_axis("GPUs", [8, 1, 2, 4])
    assert axis.ticks == (1, 2, 4, 8) and axis.lo < 1 and axis.hi > 8
    assert power_axis("GPUs", [4]).ticks == (4,)
    decades = decade_axis("s", 0.02, 3.0)
    assert decades.ticks == pytest.approx((0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)) and decades.hi > 3
    assert math.isclose(decade_axis("s", 1e-9, 1e9).ticks[1] / decade_axis("s", 1e-9, 1e9).ticks[0], 1e4)


def test_text_that_xml_cannot_hold_is_replaced() -> None:
    assert one_line("a\x00b\ud800c\uffffd\n") == "a b\N{REPLACEMENT CHARACTER}c\N{REPLACEMENT CHARACTER}d "
    assert len(one_line("x" * 500)) == 80


def test_a_panel_of_baselines_alone_is_told_and_not_drawn(record_of: RecordOf) -> None:
    records = [
        record_of(gpus, axes={"model": model}, metrics={"samples_per_s": 100.0 * gpus})
        for gpus, model in ((1, "a"), (2, "a"), (1, "b"))
    ]
    cells = collect(records, scaling="weak")[1]
    for plot in (speedup(cells), efficiency(cells)):
        assert [panel.title for panel in plot.panels] == ["model: a"]
        assert list(plot.remarks) == ["One group of cells has only the baseline, and therefore no panel."]


def test_intervals_that_go_on_beyond_the_plot_are_told(record_of: RecordOf) -> None:
    def drawn(*accuracies: list[float]) -> Plot:
        records = [
            record_of(1, seed, batch=32 * (place + 1), metrics={"accuracy": value})
            for place, values in enumerate(accuracies)
            for seed, value in enumerate(values)
        ]
        return accuracy(collect(records, scaling="weak")[1])

    assert drawn([0.90, 0.91, 0.92], [0.80, 0.80, 0.80]).remarks == []  # .91 ± .025; the picture ends at .965
    told = "1 interval extends beyond the axis; the CSV file has the values."
    assert drawn([0.80, 0.91, 0.98], [0.85, 0.85, 0.85]).remarks == [told]  # .897 ± .226


def test_few_epochs_have_a_tick_each_and_no_half_ones() -> None:
    assert (epoch_axis([1, 1, 1]).ticks, epoch_axis([1]).lo, epoch_axis([1]).hi) == ((1,), 0.5, 1.5)
    assert epoch_axis([1, 2, 3, 2]).ticks == (1, 2, 3)
    assert epoch_axis(range(100)).ticks == () == epoch_axis([0.5, 1]).ticks


def test_where_no_test_set_was_looked_at_the_accuracy_that_chooses_is_drawn(record_of: RecordOf) -> None:
    known = [record_of(1, seed, metrics={"val_accuracy": 0.9 + seed / 100}) for seed in (0, 1, 2)]
    drawn = accuracy(collect(known, scaling="weak")[1])
    assert drawn.is_drawn and drawn.y.label == "validation accuracy" and "The recommendation uses it" in drawn.about
    series = drawn.panels[0].series[0]
    assert series.y == pytest.approx((0.91,)) and series.lo == pytest.approx((0.91 - 0.02484,), abs=1e-5)
    on_test = [record_of(1, metrics={"val_accuracy": 0.9, "accuracy": 0.8})]
    assert accuracy(collect(on_test, scaling="weak")[1]).panels[0].series[0].y == (0.8,)


def test_a_plot_of_cells_that_one_process_timed_says_so(record_of: RecordOf) -> None:
    def remarks(process: Callable[[int], str]) -> str:
        records = [
            record_of(g, s, metrics={"samples_per_s": 100.0 * g}, provenance={"process": process(s)})
            for g in (1, 2)
            for s in (0, 1)
        ]
        return " ".join(speedup(collect(records, scaling="weak")[1]).remarks)

    assert "In 2 cells one process timed all seeds" in remarks(lambda seed: "7")
    assert "one process" not in remarks(str)


def test_a_long_curve_is_thinned_from_its_first_to_its_last_epoch() -> None:
    record = demo.records()[0]
    trials, cells = collect([record], scaling="weak")
    epochs = range(1, 1001)
    rows = {"trial_id": record.trial_id, "epoch": epochs, "loss": [1 / epoch for epoch in epochs]}
    (panel,) = loss(cells, trials, pd.DataFrame(rows)).panels
    (drawn,) = (series.x for series in panel.series)
    assert len(drawn) <= 1 + MOST_POINTS and (drawn[0], drawn[-1]) == (1, 1000)


@pytest.mark.parametrize(("counts", "panels", "lines"), [((1, 2, 4), 1, 3), ((1, 2, 4, 8, 16, 32, 64, 128, 256), 9, 1)])
def test_curves_that_can_be_told_apart_share_a_panel(
    counts: tuple[int, ...], panels: int, lines: int, record_of: RecordOf
) -> None:
    records = [record_of(gpus, seed, metrics={"samples_per_s": 1.0}) for gpus in counts for seed in (0, 1)]
    trials, cells = collect(records, scaling="weak")
    rows = [{"trial_id": each.trial_id, "epoch": epoch, "loss": 1 / epoch} for each in records for epoch in (1, 2)]
    drawn = loss(cells, trials, pd.DataFrame(rows))
    assert [len(panel.series) for panel in drawn.panels] == [lines] * panels
    if panels == 1:
        assert drawn.legend == ("1×32 none", "2×32 none", "4×32 none")
        assert [series.label for series in drawn.panels[0].series] == list(drawn.legend)


def test_the_ideal_starts_from_a_baseline_in_another_panel(record_of: RecordOf) -> None:
    def trial(gpus: int, strategy: str, rate: float) -> TrialRecord:
        return record_of(
            gpus, 0, axes={"strategy": strategy}, metrics={"samples_per_s": rate}, cell_id=f"{strategy}{gpus}"
        )

    records = [trial(1, "ddp", 100.0), trial(2, "ddp", 190.0), trial(2, "data_parallel", 60.0)]
    cells = collect(records, scaling="weak", baseline={"gpus": 1, "strategy": "ddp"})[1]
    guides = {panel.title: panel.guides for panel in speedup(cells).panels}
    assert len(guides) == 2 and all(each == [((1.0, 2.0), (1.0, 2.0))] for each in guides.values())
