"""Objectives of the recommendation against values worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from orchestrator.analysis.objective import measured, time_s, total_s
from orchestrator.config.request import Terms
from orchestrator.config.settings import ReportSection
from sweeps.metric import Target

NAN = math.nan
TARGET = Target(metric="val_accuracy", value=0.97, higher_is_better=True)


def trials(**columns):
    """Two GPUs for 36 s, 7,200 samples at 200 a second and .5 J each; `columns` say otherwise, or of how many."""
    count = max((len(values) for values in columns.values()), default=1)
    given = {
        "cell_id": ["a"] * count,
        "device": ["NVIDIA H200"] * count,
        "gpus_held": [2.0] * count,
        "global_batch_size": [50] * count,
        "samples": [7200.0] * count,
        "samples_per_s": [200.0] * count,
        "train_s": [50.0] * count,
        "time_to_target_s": [NAN] * count,
        "energy_j_per_sample": [0.5] * count,
    }
    return pd.DataFrame(given | columns)


def test_seeds_that_missed_the_target_add_their_time():
    cells = trials(
        cell_id=["a", "a", "a", "b", "b", "c"],
        time_to_target_s=[10.0, 20.0, NAN, 15.0, 16.0, NAN],
        samples=[6000.0] * 6,
    )
    measure = time_s(cells, TARGET)
    # Of cell a two reached it, after 10 and 20 s, and the third took 6,000 samples, 200 a second: 10 + 15 and 20 + 15.
    np.testing.assert_allclose(measure.values, [25.0, 35.0, NAN, 15.0, 16.0, NAN])
    assert (measure.unit, measure.why) == ("s", "")
    assert measure.name.startswith("time to the target ") and "0.97" in measure.name
    assert time_s(cells, None).name == "time to the target"


def test_fixed_steps_are_compared_over_the_same_samples():
    cells = trials(samples=[1800.0, 7200.0], budget_samples=[7200.0, 7200.0], work_done=[1.0, 1.0])
    measure = time_s(cells, None)
    np.testing.assert_allclose(measure.values, [36.0, 36.0])
    assert "rate" in measure.name
    assert "rate" not in time_s(cells.assign(work_done=[0.25, 1.0]), None).name


def test_without_a_target_time_is_samples_over_rate():
    cells = trials(samples_per_s=[200.0, NAN, 100.0], samples=[7200.0, 7200.0, NAN], train_s=[50.0, 60.0, 70.0])
    missed, without = time_s(cells, TARGET), time_s(cells, None)
    for measure in (missed, without):
        np.testing.assert_allclose(measure.values, [36.0, 60.0, 70.0])
        assert "fixed budget" in measure.name
    assert missed.why == "target_missed"
    assert without.why == "no_target"


@pytest.mark.parametrize(
    ("budget", "value"),
    [({"samples": 600, "steps": None}, 3.0), ({"steps": 100}, 25.0), ({"epochs": 10, "samples": None}, NAN)],
)
def test_a_rate_alone_uses_the_samples_of_the_budget(budget, value):
    silent = trials(samples=[NAN], train_s=[NAN])
    np.testing.assert_allclose(time_s(silent, None, budget).values, [value])  # at 200 samples a second, 50 a step
    np.testing.assert_allclose(time_s(trials(), None, budget).values, [36.0])  # what is reported comes first


@pytest.mark.parametrize(
    ("objective", "price", "value", "unit"),
    [
        ("time", 4.0, 36.0, "s"),
        ("energy", 4.0, 3600.0, "J"),  # 100 W for 36 s
        ("cost", 4.0, 0.08, "at your price"),  # 2 GPUs for a hundredth of an hour
        ("cost", None, 0.02, "GPU-hours"),
    ],
)
def test_each_objective_has_its_value_unit_and_name(objective, price, value, unit):
    measure = measured(trials(), Terms(report=ReportSection(price_per_gpu_hour=price)), objective)
    assert measure.values.item() == pytest.approx(value) and measure.unit == unit
    assert measure.name.startswith(f"{objective} ") and "fixed budget" in measure.name


def test_energy_and_cost_to_a_target_use_its_time():
    cells = trials(time_to_target_s=[18.0, NAN], samples=[7200.0, 3600.0])
    assert measured(cells, Terms(target=TARGET), "energy").values[0] == pytest.approx(3600.0)
    assert measured(cells, Terms(target=TARGET, report=ReportSection(price_per_gpu_hour=4.0)), "cost").values[
        0
    ] == pytest.approx(0.08)
    name = measured(cells, Terms(target=TARGET, report=ReportSection(price_per_gpu_hour=4.0)), "cost").name
    assert name.startswith("cost to the target ") and "0.97" in name


def test_on_cpus_the_cost_is_in_worker_hours():
    cells = trials(device=["cpu"])
    measure = measured(cells, Terms(report=ReportSection(price_per_gpu_hour=4.0)), "cost")
    assert measure.values.item() == pytest.approx(0.02) and measure.unit == "worker-hours"
    assert (
        measured(
            trials(device=["cpu", "NVIDIA H200"]), Terms(report=ReportSection(price_per_gpu_hour=4.0)), "cost"
        ).unit
        == "at your price"
    )


@pytest.mark.parametrize(
    ("figures", "value"),
    [
        ({}, 30.0 - 5.0),  # the window follows the training
        ({"epoch_s": 4.0}, 30.0),  # the window is an epoch
        ({"strategy": "own_ranks"}, 30.0),  # a command's window is a part of its training
        ({"strategy": "own_ranks", "window_s": 19.0, "epoch_s": 1.0}, 30.0),
        ({"strategy": "own_ranks", "attempt": 2}, math.nan),
        ({"window_s": 21.0}, math.nan),  # a benchmark, which trains for less than its window
    ],
)
def test_total_time_leaves_out_a_window_after_the_training(figures, value):
    trial = {"samples": 1000, "samples_per_s": 50.0, "train_s": 20.0, "wall_s": 30.0, "window_s": 5.0, "epoch_s": 0.1}
    frame = pd.DataFrame([trial | {"gpus": 1, "attempt": 1, "strategy": "ddp"} | figures])
    assert total_s(frame, pd.Series([False]), pd.Series([True]))[0] == pytest.approx(value, nan_ok=True)
    # The window is that of another trial.
    untimed = total_s(frame, pd.Series([False]), pd.Series([False]))[0]
    assert untimed == pytest.approx(value if math.isnan(value) else 30.0, nan_ok=True)


@pytest.mark.parametrize(
    ("gpus", "kept", "beside", "starts"),
    [
        ([1, 1, 1], [False, False, False], [12.0, 13.0, 14.0], [0, 0, 0]),
        ([2, 2, 2], [False, True, True], [24.0, 4.0, 6.0], [0, 19, 19]),
        ([2, 2, 1, 1], [False, True, False, True], [24.0, 4.0, 13.0, 3.0], [0, 20, 0, 10]),
        ([2, 2, 1], [False, True, True], [24.0, 4.0, 3.0], [0, 20, 20.5]),  # in a process of two: the start of any
        ([1, 1], [True, True], [4.0, 4.0], [math.nan, math.nan]),  # a start that nobody has seen
        ([1, 1], [False, True], [3.0, 4.0], [0, 0]),  # by chance; a start takes no less than nothing
    ],
)
def test_every_total_time_has_the_start_of_new_processes(gpus, kept, beside, starts):
    trial = {"samples": 1000, "samples_per_s": 50.0, "train_s": 20.0, "window_s": 5.0, "epoch_s": 4.0, "attempt": 1}
    walls = [20.0 + seconds for seconds in beside]
    frame = pd.DataFrame([trial | {"gpus": n, "wall_s": wall} for n, wall in zip(gpus, walls, strict=True)])
    wanted = [wall + start for wall, start in zip(walls, starts, strict=True)]
    totals = total_s(frame.assign(strategy="ddp"), pd.Series(kept), pd.Series([True] * len(kept)))
    assert totals.tolist() == pytest.approx(wanted, nan_ok=True)
