from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from orchestrator.analysis.trials import collect
from orchestrator.config.request import Metric, Terms
from orchestrator.decision.decide import decide
from orchestrator.report.cell_plots import (
    accuracy,
    cell_plots,
    cell_rows,
    memory,
    time_to_target,
    trade_off,
    with_times,
)
from orchestrator.report.plot import Plot
from orchestrator.report.speedup_plots import speedup, why_not_linear
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.drawing import TIMED, made, texts


@pytest.fixture(scope="module")
def sweep() -> tuple[pd.DataFrame, list[dict]]:
    return made(demo.records(), reference_batch_size=32)


def test_front_cells_are_beaten_by_no_cell(sweep: tuple[pd.DataFrame, list[dict]]) -> None:
    timed = [row for row in sweep[1] if row["timing"] and row["time"] == row["time"]]
    for row in timed:
        beaten = any(
            each["time"] <= row["time"]
            and each["metric"] >= row["metric"]
            and (each["time"], each["metric"]) != (row["time"], row["metric"])
            for each in timed
        )
        assert row["on_front"] is not beaten, row["cell"]


def test_rows_have_the_times_of_the_recommendation() -> None:
    trials, cells = collect(demo.records(), scaling="weak", reference_batch_size=32)
    found = decide(trials, cells, Terms())
    rows = {row["cell"]: row for row in cell_rows(with_times(cells, trials), found)}
    for setting in found.shortlist:
        assert rows[setting.name]["time"] == pytest.approx(setting.figures["time"].value)
    assert rows[found.name]["role"] == "recommended" and rows[found.name]["panel_order"] == 0
    drawn = texts(trade_off(cells, pd.DataFrame(list(rows.values())), found), list(rows.values()))
    assert found.name in drawn and {"none", "linear", "sqrt"} <= set(drawn)


def test_rules_with_one_timing_share_a_panel(sweep: tuple[pd.DataFrame, list[dict]]) -> None:
    cells = sweep[0]
    shared = cells.groupby(["gpus", "device_batch_size"])["speedup"].transform("first")
    trials = collect(demo.records(), scaling="weak")[0]
    assert {row["panel"] for row in cell_rows(with_times(cells.assign(speedup=shared), trials), None)} == {""}
    assert {row["panel"] for row in sweep[1]} == set(demo.RULES)


def test_cells_that_missed_the_target_are_counted(sweep: tuple[pd.DataFrame, list[dict]]) -> None:
    cells = sweep[0]
    missed = int((cells["time_to_target_s"].isna() & (cells["n_ok"] > 0)).sum())
    assert missed and time_to_target(cells).remarks[0].startswith(f"{missed} cells")


def test_memory_is_the_largest_over_rules(sweep: tuple[pd.DataFrame, list[dict]]) -> None:
    drawn = texts(memory(sweep[0]), sweep[1])
    assert {"1×32", "8×128"} <= set(drawn) and f"{1.4 + 0.021 * 32:.3g}" in drawn


def test_without_gpus_charts_name_processes() -> None:
    cells, rows = made([demo.replaced(record, device="cpu") for record in demo.records()])
    for plot in cell_plots(cells, rows, None):
        drawn = " ".join([plot.title, plot.about, plot.absent, *(texts(plot, rows) if plot.spec else [])])
        assert "GPU" not in drawn, plot.name


@pytest.mark.parametrize("draw", [speedup, accuracy, time_to_target, memory, why_not_linear])
def test_a_plot_without_data_has_a_reason(draw: Callable[[pd.DataFrame], Plot]) -> None:
    cells, rows = made([demo.replaced(demo.records()[0], metrics={})])
    assert draw(cells).spec is None and draw(cells).absent.endswith(".")
    assert trade_off(cells, pd.DataFrame(rows), None).spec is None


def test_without_test_accuracy_validation_accuracy_is_drawn() -> None:
    cells, rows = made([record_of(1, seed, metrics={"val_accuracy": 0.9 + seed / 100}) for seed in (0, 1, 2)])
    assert "validation accuracy" in texts(accuracy(cells), rows)
    cells, rows = made([record_of(1, metrics={"val_accuracy": 0.9, "accuracy": 0.8})])
    assert "test accuracy" in texts(accuracy(cells), rows)


def test_hostile_texts_are_drawn_as_text() -> None:
    cells, rows = made(demo.records(sweep=demo.EVIL, evil=demo.EVIL))
    assert any("<script>alert('x')</script>" in each for each in texts(speedup(cells), rows))
    for plot in cell_plots(cells, rows, None):
        assert "alert" not in str(plot.spec)


def test_a_metric_that_is_better_when_lower_turns_the_front() -> None:
    losses = {32: 0.5, 64: 0.3, 128: 0.4}
    records = [
        record_of(1, batch=b, metrics=TIMED | {"train_s": b, "samples": None, "val_loss": losses[b]}) for b in losses
    ]
    trials, cells = collect(records, scaling="weak", metric=Metric.named("val_loss"))
    found = replace(demo.RECOMMENDATION, terms=Terms(metric=Metric.named("val_loss")))
    rows = cell_rows(with_times(cells, trials), found)
    assert [row["cell"] for row in rows if row["on_front"]] == ["1×32 none", "1×64 none"]
    assert "validation loss" in texts(trade_off(cells, pd.DataFrame(rows), found), rows)
