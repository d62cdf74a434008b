import pandas as pd
import pytest

from orchestrator.report.curve_plots import (
    MOST_CURVES,
    MOST_POINTS,
    MOST_SAMPLED,
    TelemetrySamples,
    chosen_trials,
    loss,
    power,
    samples,
    utilisation,
)
from orchestrator.report.plot import MOST_SERIES
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.drawing import texts


@pytest.fixture(scope="module")
def cells():
    return collect(demo.records(), scaling="weak")[1]


def frame(ranks, **columns):
    """Two samples of each rank's only device."""
    rows = [{"rank": rank, "device": "gpu0", "time_s": time_s, **columns} for rank in range(ranks) for time_s in (0, 1)]
    return pd.DataFrame(rows)


def test_named_cells_are_chosen_first_and_others_evenly():
    names = [f"c{number}" for number in range(40)]
    trials = pd.DataFrame(
        {"trial_id": [f"{name}-0" for name in names], "cell_id": names, "status": ["ok"] * 39 + ["oom"]}
    )
    drawn_trials = chosen_trials(pd.DataFrame({"cell_id": names}), trials, ["c7", "c7", "of another sweep", "c39"])
    drawn = [int(cell.removeprefix("c")) for _, cell in drawn_trials]
    assert len(drawn) == MOST_SAMPLED and drawn == sorted(drawn)
    assert {0, 7} <= set(drawn) and 39 not in drawn and max(drawn) > 30
    assert drawn_trials[0] == ("c0-0", "c0")


def test_each_device_has_a_line_and_named_cells_are_first(cells):
    seen = [TelemetrySamples(cell_id=f"{ranks}-32-none", frame=frame(ranks, gpu_util=0.9)) for ranks in (1, 2)]
    plot = utilisation(cells, seen, ["2-32-none"])
    assert plot.title == "GPU utilisation" and plot.rows is not None and len(plot.rows) == 6
    lines = {(row["panel_order"], row["cell"], row["line"]) for row in plot.rows}
    two, one = "2×32 none", "1×32 none"
    assert lines == {(1, two, "rank 0, gpu0"), (1, two, "rank 1, gpu0"), (2, one, "rank 0, gpu0")}
    assert "2 of 36" in plot.remarks[0]
    assert power(cells, seen, []).spec is None and power(cells, seen, []).absent


def test_without_gpus_busy_cores_are_drawn(cells):
    on_cpu = frame(2, cpu_util=1.5).assign(device="cpu")
    plot = utilisation(cells, [TelemetrySamples(cell_id="2-32-none", frame=on_cpu)], [])
    assert "cores busy" in str(plot.spec) and {row["line"] for row in plot.rows or ()} == {"rank 0", "rank 1"}


def test_a_panel_has_as_many_devices_as_colours(cells):
    plot = power(cells, [TelemetrySamples(cell_id="8-32-none", frame=frame(MOST_SERIES + 2, power_w=400.0))], [])
    assert len({row["line"] for row in plot.rows or ()}) == MOST_SERIES


def test_samples_are_thinned_out_to_means(results_folder):
    results_folder.trial("a").mkdir()
    times = [float(second) for second in range(1001)]
    rows = {"rank": [0] * 1001, "device": ["gpu0"] * 1001, "time_s": times, "gpu_util": times, "other": times}
    pd.DataFrame(rows).to_parquet(results_folder.telemetry("a"))
    (sampled,), unsound = samples(results_folder, [("a", "cell"), ("never-sampled", "other")])
    assert unsound == [] and sampled.cell_id == "cell"
    assert len(sampled.frame) == MOST_POINTS and "other" not in sampled.frame
    assert sampled.frame["gpu_util"].iloc[0] == 4.5  # the mean of 0 to 9
    assert sampled.frame["gpu_util"].iloc[-1] == 995.0  # of 990 to 1000


def test_a_long_curve_keeps_its_first_and_last_epoch():
    record = demo.records()[0]
    trials, cells = collect([record], scaling="weak")
    epochs = range(1, 1001)
    rows = {"trial_id": record.trial_id, "epoch": epochs, "loss": [1 / epoch for epoch in epochs]}
    drawn = [row["epoch"] for row in loss(cells, trials, pd.DataFrame(rows), []).rows or ()]
    assert len(drawn) <= 1 + MOST_POINTS and (drawn[0], drawn[-1]) == (1, 1000)


@pytest.mark.parametrize(("counts", "panels", "lines"), [((1, 2, 4), 1, 3), ((1, 2, 4, 8, 16, 32, 64, 128, 256), 9, 1)])
def test_few_curves_share_a_panel(counts, panels, lines):
    records = [record_of(gpus, seed, metrics={"samples_per_s": 1.0}) for gpus in counts for seed in (0, 1)]
    trials, cells = collect(records, scaling="weak")
    rows = [{"trial_id": record.trial_id, "epoch": epoch, "loss": 1 / epoch} for record in records for epoch in (1, 2)]
    drawn = loss(cells, trials, pd.DataFrame(rows), []).rows or ()
    seen = {(row["panel"], row["line"]) for row in drawn}
    assert (len({panel for panel, _ in seen}), len(seen)) == (panels, panels * lines)
    assert panels > 1 or {line for _, line in seen} == {"1×32 none", "2×32 none", "4×32 none"}


def test_the_recommended_cell_is_among_many_curves():
    records = [record_of(1, batch=batch, metrics={"samples_per_s": 1.0}) for batch in range(1, 200)]
    trials, cells = collect(records, scaling="weak")
    rows = pd.DataFrame([{"trial_id": record.trial_id, "epoch": 1, "loss": 1.0} for record in records])
    plot = loss(cells, trials, rows, [records[101].cell_id])
    known = {row["cell"] for row in plot.rows or ()}
    drawn = known & set(texts(plot, []))
    # The others are there for the filters.
    assert (len(drawn), len(known)) == (MOST_SERIES, MOST_CURVES) and "1×102 none" in drawn
    assert "8 of 199" in plot.remarks[0]
