import pandas as pd
import pytest

from orchestrator.analysis.trials import collect
from orchestrator.report.curve_plots import MOST_POINTS, Samples, chosen_trials, loss, power, samples, utilisation
from orchestrator.report.plot import MOST_PANELS, MOST_SERIES
from orchestrator.store.layout import Layout
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return collect(demo.records(), scaling="weak")[1]


def frame(ranks: int, **columns: float) -> pd.DataFrame:
    """Two samples of each rank's only device."""
    rows = [{"rank": rank, "device": "gpu0", "time_s": time_s, **columns} for rank in range(ranks) for time_s in (0, 1)]
    return pd.DataFrame(rows)


def test_named_cells_are_chosen_first_and_others_evenly() -> None:
    names = [f"c{number}" for number in range(40)]
    trials = pd.DataFrame(
        {"trial_id": [f"{name}-0" for name in names], "cell_id": names, "status": ["ok"] * 39 + ["oom"]}
    )
    found = chosen_trials(pd.DataFrame({"cell_id": names}), trials, ["c7", None, "c7", "of another sweep", "c39"])
    drawn = [int(cell.removeprefix("c")) for _, cell in found]
    assert len(drawn) == MOST_PANELS and drawn == sorted(drawn)
    assert {0, 7} <= set(drawn) and 39 not in drawn and max(drawn) > 30
    assert found[0] == ("c0-0", "c0")


def test_a_device_has_the_same_colour_in_all_panels(cells: pd.DataFrame) -> None:
    seen = [Samples(cell_id=f"{ranks}-32-none", frame=frame(ranks, gpu_util=0.9)) for ranks in (1, 2)]
    plot = utilisation(cells, seen)
    assert (plot.title, plot.legend) == ("GPU utilisation", ("rank 0, gpu0", "rank 1, gpu0"))
    assert [[series.place for series in panel.series] for panel in plot.panels] == [[0], [0, 1]]
    assert plot.panels[1].series[1].y == (0.9, 0.9) and len(plot.data) == 6
    assert len(plot.remarks) == 1 and "2 of 36" in plot.remarks[0]
    assert not power(cells, seen).is_drawn and power(cells, seen).absent


def test_without_gpus_busy_cores_are_drawn(cells: pd.DataFrame) -> None:
    on_cpu = frame(2, cpu_util=1.5).assign(device="cpu")
    plot = utilisation(cells, [Samples(cell_id="2-32-none", frame=on_cpu)])
    assert (plot.y.label, plot.legend) == ("cores busy", ("rank 0", "rank 1"))


def test_undrawn_devices_have_a_remark(cells: pd.DataFrame) -> None:
    plot = power(cells, [Samples(cell_id="8-32-none", frame=frame(MOST_SERIES + 2, power_w=400.0))])
    assert len(plot.panels[0].series) == len(plot.legend) == MOST_SERIES
    assert f"first {MOST_SERIES} " in plot.remarks[-1]


def test_samples_are_thinned_out_to_means(layout: Layout) -> None:
    layout.trial("a").mkdir()
    times = [float(second) for second in range(1001)]
    rows = {"rank": [0] * 1001, "device": ["gpu0"] * 1001, "time_s": times, "gpu_util": times, "other": times}
    pd.DataFrame(rows).to_parquet(layout.telemetry("a"))
    (found,), unsound = samples(layout, [("a", "cell"), ("never-sampled", "other")])
    assert unsound == [] and found.cell_id == "cell"
    assert len(found.frame) == MOST_POINTS and "other" not in found.frame
    assert found.frame["gpu_util"].iloc[0] == 2.0  # the mean of 0 to 4
    assert found.frame["gpu_util"].iloc[-1] == 997.5  # of 995 to 1000


def test_a_long_curve_keeps_its_first_and_last_epoch() -> None:
    record = demo.records()[0]
    trials, cells = collect([record], scaling="weak")
    epochs = range(1, 1001)
    rows = {"trial_id": record.trial_id, "epoch": epochs, "loss": [1 / epoch for epoch in epochs]}
    (panel,) = loss(cells, trials, pd.DataFrame(rows)).panels
    (drawn,) = (series.x for series in panel.series)
    assert len(drawn) <= 1 + MOST_POINTS and (drawn[0], drawn[-1]) == (1, 1000)


@pytest.mark.parametrize(("counts", "panels", "lines"), [((1, 2, 4), 1, 3), ((1, 2, 4, 8, 16, 32, 64, 128, 256), 9, 1)])
def test_few_curves_share_a_panel(counts: tuple[int, ...], panels: int, lines: int) -> None:
    records = [record_of(gpus, seed, metrics={"samples_per_s": 1.0}) for gpus in counts for seed in (0, 1)]
    trials, cells = collect(records, scaling="weak")
    rows = [{"trial_id": each.trial_id, "epoch": epoch, "loss": 1 / epoch} for each in records for epoch in (1, 2)]
    drawn = loss(cells, trials, pd.DataFrame(rows))
    assert [len(panel.series) for panel in drawn.panels] == [lines] * panels
    if panels == 1:
        assert drawn.legend == ("1×32 none", "2×32 none", "4×32 none")
        assert [series.label for series in drawn.panels[0].series] == list(drawn.legend)
