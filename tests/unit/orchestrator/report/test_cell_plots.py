import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from orchestrator.analysis.scaling_loss import LOST
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
from orchestrator.report.plot import Plot, svg
from orchestrator.report.speedup_plots import largest, speedup, speedup_by_batch, why_not_linear
from orchestrator.store.record import TrialRecord
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo

STEP = {"step_s": 1.0, "step_data_s": 0.1, "step_host_s": 0.1, "step_communication_s": 0.0, "step_imbalance_s": 0.0}

TIMED = {"val_accuracy": 0.9, "train_s": 10.0, "samples": 1000, "window_s": 2.5, "window_steps": 500}


def texts(plot: Plot, rows: list[dict]) -> list[str]:
    """Return the texts of the drawn chart, in the order of the drawing."""
    assert plot.spec is not None, plot.absent
    drawing = ET.fromstring(svg(plot, rows))
    return [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text") if element.text]


def made(records: list[TrialRecord], **options: object) -> tuple[pd.DataFrame, list[dict]]:
    """Return the cells, and the rows of their charts without a recommendation."""
    trials, cells = collect(records, **{"scaling": "weak", **options})  # type: ignore[arg-type]
    return cells, cell_rows(with_times(cells, trials), None)


@pytest.fixture(scope="module")
def sweep() -> tuple[pd.DataFrame, list[dict]]:
    return made(demo.records(), reference_batch_size=32)


def scaling(gpus: int, seed: int = 0, rate: float = 1000.0, **more: float) -> TrialRecord:
    return record_of(gpus, seed, metrics={**STEP, "step_compute_s": 0.8, "samples_per_s": rate, **more})


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


def test_two_gpu_counts_have_labelled_values_and_the_ideal() -> None:
    cells, rows = made([scaling(1), scaling(2, rate=1600.0)])
    drawn = texts(speedup(cells), rows)
    assert "1.60× (80%)" in drawn
    assert [row["ideal"] for row in rows] == pytest.approx([1, 2])


def test_lines_end_with_their_efficiency(sweep: tuple[pd.DataFrame, list[dict]]) -> None:
    cells, rows = sweep
    drawn = texts(speedup(cells), rows)
    ends = cells[(cells["gpus"] == 8) & cells["efficiency"].notna()]
    assert {f"{each:.0%}" for each in ends["efficiency"]} <= set(drawn)
    assert [each for each in drawn if each in demo.RULES] == list(demo.RULES)


def test_rules_with_one_timing_share_a_panel(sweep: tuple[pd.DataFrame, list[dict]]) -> None:
    cells = sweep[0]
    shared = cells.groupby(["gpus", "device_batch_size"])["speedup"].transform("first")
    trials = collect(demo.records(), scaling="weak")[0]
    assert {row["panel"] for row in cell_rows(with_times(cells.assign(speedup=shared), trials), None)} == {""}
    assert {row["panel"] for row in sweep[1]} == set(demo.RULES)


def test_at_most_twelve_panels_are_drawn_the_nearest_first() -> None:
    records = [
        record_of(gpus, seed, axes={"w": w}, metrics=TIMED | {"samples_per_s": 100.0 * gpus + w})
        for gpus in (1, 2)
        for w in range(15)
        for seed in (0, 1)
    ]
    trials, cells = collect(records, scaling="weak")
    found = decide(trials, cells, Terms(axes={"gpus": "gpus", "w": "w"}))
    rows = cell_rows(with_times(cells, trials), found)
    titles = [each for each in texts(speedup(cells), rows) if re.fullmatch(r"w=\d+", each)]
    best = next(row for row in rows if row["role"] == "recommended")
    assert len(titles) == 12 and titles[0] == best["panel"]


def test_speedup_by_batch_needs_three_batches_and_three_gpu_counts(sweep: tuple[pd.DataFrame, list[dict]]) -> None:
    cells, rows = sweep
    (plot,) = speedup_by_batch(cells)
    assert {"2", "4", "8", "32", "128", "512"} <= set(texts(plot, rows))
    assert (
        speedup_by_batch(cells[cells["gpus"] <= 2]) == speedup_by_batch(cells[cells["device_batch_size"] < 512]) == []
    )


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


def test_one_gpu_count_has_no_speedup(sweep: tuple[pd.DataFrame, list[dict]]) -> None:
    cells = sweep[0]
    assert speedup(cells[cells["gpus"] == 1]).absent


def test_without_test_accuracy_validation_accuracy_is_drawn() -> None:
    cells, rows = made([record_of(1, seed, metrics={"val_accuracy": 0.9 + seed / 100}) for seed in (0, 1, 2)])
    assert "validation accuracy" in texts(accuracy(cells), rows)
    cells, rows = made([record_of(1, metrics={"val_accuracy": 0.9, "accuracy": 0.8})])
    assert "test accuracy" in texts(accuracy(cells), rows)


def test_lost_speedup_is_drawn_and_named() -> None:
    cells, rows = made([scaling(1), scaling(2, rate=1600.0, step_communication_s=0.2, step_compute_s=0.64)])
    (row,) = (each for each in rows if each["gpus"] == 2)
    parts = [value for name, value in row.items() if name.startswith("lost_") and value == value]
    assert row["efficiency"] + sum(parts) == pytest.approx(1) and row["lost_communication"] == pytest.approx(0.2)
    assert {"2×32 none", "kept", "exchanging gradients"} <= set(texts(why_not_linear(cells), rows))
    assert "exchanging gradients (20% of" in largest(cells, None) and "2×32 none" in largest(cells, None)
    assert largest(made([scaling(1)])[0], None) == ""


@pytest.mark.parametrize(("rate", "kept"), [(1600.0, 80), (2200.0, 100)])
def test_no_bar_ends_above_the_ideal(rate: float, kept: int) -> None:
    """The passes are faster than on one GPU: a negative loss, so that the other parts sum to more than 100%."""
    step = {"step_communication_s": 0.3, "step_compute_s": 0.5}
    cells, rows = made([scaling(1), scaling(2, rate=rate, **step)])
    assert sum(max(0.0, rows[1][name]) for name in ("efficiency", *LOST)) > 1.05
    shares = [int(text) for text in re.findall(r"ideal speed-up: (\d+)%", svg(why_not_linear(cells), rows))]
    assert shares[0] == kept and sum(shares) == pytest.approx(100, abs=2)


def test_hostile_texts_are_drawn_as_text() -> None:
    cells, rows = made(demo.records(sweep=demo.EVIL, evil=demo.EVIL))
    assert any("<script>alert('x')</script>" in each for each in texts(speedup(cells), rows))
    for plot in cell_plots(cells, rows, None):
        assert "alert" not in str(plot.spec)


def test_speedups_timed_by_one_process_have_a_remark() -> None:
    def remarks(process: Callable[[int], str]) -> str:
        records = [
            record_of(g, s, metrics={"samples_per_s": 100.0 * g}, provenance={"process": process(s)})
            for g in (1, 2)
            for s in (0, 1)
        ]
        return " ".join(speedup(collect(records, scaling="weak")[1]).remarks)

    assert "workers=per_seed" in remarks(lambda seed: "7") and "workers=per_seed" not in remarks(str)


def test_a_metric_that_is_better_when_lower_turns_the_front() -> None:
    losses = {32: 0.5, 64: 0.3, 128: 0.4}
    records = [
        record_of(1, batch=b, metrics=TIMED | {"train_s": b, "samples": None, "val_loss": losses[b]}) for b in losses
    ]
    trials, cells = collect(records, scaling="weak", metric="val_loss")
    found = replace(demo.RECOMMENDATION, metric=Metric(name="val_loss", higher_is_better=False))
    rows = cell_rows(with_times(cells, trials), found)
    assert [row["cell"] for row in rows if row["on_front"]] == ["1×32 none", "1×64 none"]
    assert "validation loss" in texts(trade_off(cells, pd.DataFrame(rows), found), rows)
