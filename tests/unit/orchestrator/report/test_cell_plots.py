import json
import re
from dataclasses import replace

import pandas as pd
import pytest

from orchestrator.config.request import Metric, Terms
from orchestrator.decision.decide import decide
from orchestrator.report.cell_plots import accuracy, cell_plots, memory, time_to_target, trade_off
from orchestrator.report.cell_rows import cell_rows, with_times
from orchestrator.report.speedup_plots import speedup, why_not_linear
from orchestrator.tables.candidates import Candidates
from tests.unit.orchestrator.decision.deciding import AXES
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.drawing import TIMED, made, texts


@pytest.fixture(scope="module")
def sweep():
    return made(demo.records(), reference_batch_size=32)


def test_front_cells_are_beaten_by_no_cell(sweep):
    timed = [row for row in sweep[1] if row["timing_valid"] and row["deciding_s"] == row["deciding_s"]]
    for row in timed:
        beaten = any(
            other["deciding_s"] <= row["deciding_s"]
            and other["metric"] >= row["metric"]
            and (other["deciding_s"], other["metric"]) != (row["deciding_s"], row["metric"])
            for other in timed
        )
        assert row["on_front"] is not beaten, row["cell"]


def test_charts_read_fields_that_the_rows_have(sweep):
    """Fields of the rows are named in texts alone: in `field`, `datum.NAME`, `groupby`; `as` makes further ones."""
    cells, rows = sweep
    (fields,) = {frozenset(row) for row in rows}
    drawn = [plot for plot in cell_plots(cells, rows, demo.NOT_MADE) if plot.spec is not None]
    assert len(drawn) >= 4
    for plot in drawn:
        spec = json.dumps(plot.spec)
        made_here = {*re.findall(r'"as": "(\w+)"', spec)}
        read = {*re.findall(r'"field": "([\w:]+)"', spec), *re.findall(r"datum\.(\w+)", spec)}
        read |= {field for fields in re.findall(r'"groupby": \[(.*?)\]', spec) for field in json.loads(f"[{fields}]")}
        assert read and read <= fields | made_here | {"tip"}, plot.name  # which `svg` and the page make


def test_rows_have_the_times_of_the_recommendation():
    trials, cells = collect(demo.records(), scaling="weak", reference_batch_size=32)
    recommendation = decide(trials, cells, Terms())
    rows = {row["cell"]: row for row in cell_rows(with_times(cells, trials), recommendation)}
    for setting in recommendation.shortlist:
        assert rows[setting.name]["deciding_s"] == pytest.approx(setting.figures["time"].value)
    assert rows[recommendation.name]["role"] == "use now, baseline" and rows[recommendation.name]["panel_order"] == 0
    drawn = texts(trade_off(cells, pd.DataFrame(list(rows.values())), recommendation), list(rows.values()))
    assert recommendation.name in drawn and {"none", "linear", "sqrt"} <= set(drawn)


def test_speed_ups_are_divided_by_axes_that_change_the_speed_alone(sweep):
    assert {row["panel"] for row in sweep[1]} == {""}
    assert {row["target_panel"] for row in sweep[1]} == set(demo.RULES)
    layerwise = [demo.replaced(record, lr_rule="lars" if record.lr_rule == "sqrt" else "none") for record in RULES]
    assert {row["panel"] for row in made(layerwise)[1]} == {"none", "lars"}


RULES = [
    record_of(g, lr_rule=rule, metrics=TIMED | {"samples_per_s": 100.0 * g})
    for g in (1, 2)
    for rule in ("none", "sqrt")
]


def test_panels_name_the_axes_in_which_compared_cells_differ():
    """Cells with width 9 run on one GPU alone; `depth` is that of two axes."""

    def axes(width, kind):
        return {"model.width": width, "model.depth": width, "data.depth": 1 if width < 4 else 2, "kind": kind}

    records = [
        record_of(g, axes=axes(width, kind), metrics=TIMED | {"samples_per_s": 100.0 * g + width})
        for g, width, kind in ((1, 2, "a"), (2, 2, "a"), (1, 4, "a"), (2, 4, "a"), (1, 9, "b"))
    ]
    cells, rows = made(records)
    assert {row["panel"] for row in rows if row["compared"]} == {
        *("width=2, model.depth=2, data.depth=1", "width=4, model.depth=4, data.depth=2")
    }
    assert not any("9" in text for text in texts(*speedup(cells, rows), rows) if "=" in text)


@pytest.mark.parametrize("disturbed", [{}, {"foreign_cpu": 0.9}])
def test_cells_out_of_the_competition_are_drawn_on_the_edges(disturbed):
    known = {32: (60.0, 0.90), 64: (30.0, 0.89), 128: (15.0, 0.40), 16: (200.0, 0.90)}
    records = [
        record_of(
            1, batch=batch, metrics=TIMED | disturbed | {"samples_per_s": 6000 / time_s, "val_accuracy": accuracy}
        )
        for batch, (time_s, accuracy) in known.items()
    ]
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    recommendation = decide(trials, cells, Terms())
    rows = pd.DataFrame(cell_rows(with_times(cells, trials), recommendation))
    spec = trade_off(cells, rows, recommendation).spec
    places = spec["layer"][-1]["encoding"]
    (first, last), (low, high) = (places[axis]["scale"]["domain"] for axis in ("x", "y"))
    times = rows.set_index("cell")["deciding_s"]
    if disturbed:  # without a choice all compete
        assert first < times.min() and times.max() < last and low < 0.40 and high > 0.90
        return
    assert times["1×128 none"] < first < times["1×64 none"] and times["1×32 none"] < last < times["1×16 none"]
    assert 0.8 < low < 0.89 and high > 0.90 and places["x"]["scale"]["clamp"] and places["y"]["scale"]["clamp"]


def test_cells_that_the_answer_names_are_within_the_range_of_the_chart():
    # Two GPUs are slower than the baseline, and both cells with them are beyond the chosen cell and the baseline.
    known = {(1, 32): (60.0, 0.90), (1, 64): (30.0, 0.899), (2, 32): (90.0, 0.9), (2, 16): (200.0, 0.9)}
    records = [
        record_of(gpus, batch=batch, metrics=TIMED | {"samples_per_s": 1000 / time_s, "val_accuracy": value})
        for (gpus, batch), (time_s, value) in known.items()
    ]
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    recommendation = decide(trials, cells, Terms(axes=AXES))
    rows = pd.DataFrame(cell_rows(with_times(cells, trials), recommendation))
    spec = trade_off(cells, rows, recommendation).spec
    table = Candidates.of(recommendation)
    assert "2×32 none" in [cell.name for cell in table.cells]
    last = spec["layer"][-1]["encoding"]["x"]["scale"]["domain"][1]
    assert 90 < last < 200


def test_cells_that_missed_the_target_are_counted(sweep):
    cells = sweep[0]
    missed = int((cells["time_to_target_s"].isna() & (cells["n_ok"] > 0)).sum())
    assert missed and time_to_target(cells).remarks[0].startswith(f"{missed} cells")


def test_memory_is_the_largest_over_rules(sweep):
    drawn = texts(memory(sweep[0]), sweep[1])
    assert {"1×32", "8×128"} <= set(drawn) and f"{1.4 + 0.021 * 32:.3g}" in drawn
    # The largest stands first.
    batches = [int(text.partition("×")[2]) for text in drawn if "×" in text]
    assert batches == sorted(batches, reverse=True)


def test_without_gpus_charts_name_processes():
    cells, rows = made([demo.replaced(record, device="cpu") for record in demo.records()])
    for plot in cell_plots(cells, rows, demo.NOT_MADE):
        drawn = " ".join([plot.title, plot.about, plot.absent, *(texts(plot, rows) if plot.spec else [])])
        assert "GPU" not in drawn, plot.name


@pytest.mark.parametrize("draw", [accuracy, time_to_target, memory, why_not_linear])
def test_a_plot_without_data_has_a_reason(draw):
    cells, rows = made([demo.replaced(demo.records()[0], metrics={})])
    for plot in (draw(cells), *speedup(cells, rows)):
        assert plot.spec is None and plot.absent.endswith(".")
    assert trade_off(cells, pd.DataFrame(rows), demo.NOT_MADE).spec is None


def test_the_metric_that_decides_is_drawn_else_test_accuracy():
    metrics = {"val_accuracy": 0.9, "accuracy": 0.8}
    cells, rows = made([record_of(1, seed, metrics=metrics) for seed in (0, 1, 2)])
    assert "validation accuracy" in texts(accuracy(cells), rows)
    cells, rows = made([record_of(1, metrics={"accuracy": 0.8})])
    assert "test accuracy" in texts(accuracy(cells), rows)


def test_hostile_texts_are_drawn_as_text():
    cells, rows = made(demo.records(sweep=demo.EVIL, evil=demo.EVIL))
    assert any("<script>alert('x')</script>" in text for text in texts(speedup(cells, rows)[-1], rows))
    for plot in cell_plots(cells, rows, demo.NOT_MADE):
        assert "alert" not in str(plot.spec)


def test_a_metric_that_is_better_when_lower_turns_the_front():
    losses = {32: 0.5, 64: 0.3, 128: 0.4}
    records = [
        record_of(1, batch=b, metrics=TIMED | {"train_s": b, "samples": None, "val_loss": losses[b]}) for b in losses
    ]
    trials, cells = collect(records, scaling="weak", metric=Metric.named("val_loss"))
    recommendation = replace(demo.RECOMMENDATION, terms=Terms(metric=Metric.named("val_loss")))
    rows = cell_rows(with_times(cells, trials), recommendation)
    assert [row["cell"] for row in rows if row["on_front"]] == ["1×32 none", "1×64 none"]
    assert "validation loss" in texts(trade_off(cells, pd.DataFrame(rows), recommendation), rows)
