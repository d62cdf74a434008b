"""Against figures computed by hand."""

import math
from array import array
from dataclasses import replace

import pandas as pd
import pytest

from orchestrator.store.record import TrialOutcome
from orchestrator.store.results_folder import TELEMETRY
from orchestrator.telemetry.columns import COLUMNS, figures, with_telemetry
from orchestrator.telemetry.sources import Readings
from sweeps.status import Status
from tests.contract.trials import trial

PHASES = ((1.0, "training"), (2.0, ""), (3.0, "training"), (4.0, ""), (5.0, "window"), (7.0, ""))
"""Two epochs of a second each, and a window of two seconds."""
TIMES = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
POWER = [100.0, 300.0, 300.0, 100.0, 300.0, 400.0, 400.0, 400.0, 100.0]
COUNTER = [10.0, 110.0, 410.0, 510.0, 810.0, 1110.0, 1510.0, 1910.0, 2010.0]


def seen(series, rank=0, host="a", phases=PHASES, **given):
    columns = {
        name: {key: array("d", values) for key, values in ({"time_s": TIMES} | dict(columns)).items()}
        for name, columns in series.items()
    }
    own = {"cores": 4, "foreign_load": {}, "failure": "", "ticks": len(TIMES)} | given
    return Readings(rank=rank, host=host, series=columns, phases=phases, **own)


def gpu(**columns):
    return {"gpu0": {"gpu_util": [0.5] * 9, "power_w": POWER, **columns}}


NOW_AND_THEN = [count if index not in (6, 0) else math.nan for index, count in enumerate(COUNTER)]
MORE_IN_THE_SECOND = [count + 100 * (index >= 4) for index, count in enumerate(COUNTER)]
BROKEN = [*COUNTER[:6], *[math.nan] * 3]
NOTHING = [*POWER[:6], *[math.nan] * 3]
BY_COUNTER = {"energy_j": 300 + 300, "power_w": (1910 - 1110) / 2, "energy_source": "counter"}  # from 1 to 2 and 3 to 4
NO_ENERGY = {"gpu_util": 0.5, "energy_j": None, "power_w": None, "energy_source": None}
FOREIGN = {"foreign_gpu_processes": 1.0, "foreign_cpu": 0.0}


@pytest.mark.parametrize(
    ("columns", "readings", "given", "expected"),
    [
        ({"energy_j": COUNTER}, {}, {"speed": 200.0}, BY_COUNTER | {"energy_j_per_sample": 400 / 200}),
        ({"energy_j": NOW_AND_THEN}, {}, {"speed": 200.0}, BY_COUNTER),
        ({}, {}, {}, {"energy_j": 300 + 200, "power_w": 400, "energy_source": "power", "energy_j_per_sample": None}),
        ({"energy_j": BROKEN}, {}, {}, {"energy_j": 600, "power_w": 400, "energy_source": "counter + power"}),
        (
            {"power_w": NOTHING, "gpu_util": NOTHING},
            {},
            {"speed": 9.0},
            {"energy_j": 500, "power_w": None, "energy_j_per_sample": None, "gpu_util": None},
        ),
        ({"energy_j": COUNTER}, {}, {"alone": False}, NO_ENERGY),
        ({"energy_j": COUNTER}, {"foreign_load": FOREIGN}, {}, NO_ENERGY),
        ({"energy_j": MORE_IN_THE_SECOND}, {"phases": PHASES[:4]}, {}, {"power_w": 400, "energy_j": 300 + 400}),
        (
            {"energy_j": COUNTER},
            {"phases": ()},
            {"speed": 5.0},
            {"energy_j": 2000, "energy_j_per_sample": None, "power_w": 250, "gpu_util": 0.5},
        ),
    ],
    ids=["counter", "rarely", "power", "broken", "missing", "shared", "foreign", "second epoch", "no phases"],
)
def test_energy_equals_values_computed_by_hand(columns, readings, given, expected):
    metrics = {"samples_per_s": given["speed"]} if "speed" in given else {}
    telemetry = figures([seen(gpu(**columns), **readings)], metrics, alone=given.get("alone", True))
    assert {name: telemetry.get(name) for name in expected} == pytest.approx(expected)


def test_ranks_add_up_and_the_slowest_clock_counts():
    ranks = [
        seen(gpu(energy_j=COUNTER, sm_clock_mhz=[1900.0] * 9, throttle_reasons=[0.0] * 9), rank=0),
        seen(gpu(energy_j=COUNTER, sm_clock_mhz=[1700.0] * 9, throttle_reasons=[0, 0, 64, 0, 0, 0, 4, 0, 0]), rank=1),
    ]
    telemetry = figures(ranks, {"samples_per_s": 400.0}, alone=True)
    assert telemetry["energy_j"] == pytest.approx(1200) and telemetry["power_w"] == pytest.approx(800)
    assert telemetry["energy_j_per_sample"] == pytest.approx(2) and telemetry["gpu_util"] == pytest.approx(0.5)
    assert telemetry["sm_clock_mhz"] == pytest.approx(1700)
    assert telemetry["throttle_reasons"] == "power cap"  # the thermal one was before the window


def test_gpu_util_spread_is_the_range_over_gpus():
    ranks = [seen({"gpu0": {"gpu_util": [share] * 9, "power_w": POWER}}, rank=i) for i, share in enumerate((0.9, 0.2))]
    telemetry = figures(ranks, {}, alone=True)
    assert telemetry["gpu_util"] == pytest.approx(0.55) and telemetry["gpu_util_spread"] == pytest.approx(0.7)
    assert "gpu_util_spread" not in figures(ranks[:1], {}, alone=True)
    unseen = seen({"gpu0": {"gpu_util": [math.nan] * 9, "power_w": POWER}}, rank=2)
    assert "gpu_util_spread" not in figures([*ranks, unseen], {}, alone=True)


def test_cpu_figures_replace_gpu_figures_without_gpus():
    cpu = {"cpu_s": [2.0 * t for t in TIMES], "rss_gb": [1.0, *[1.5] * 8]}
    ranks = [
        seen({"cpu": cpu | {"energy_j": COUNTER}}, rank=0, foreign_load={"foreign_cpu": 0.01, "swapped_pages": 0.0}),
        seen({"cpu": cpu}, rank=1, foreign_load={"foreign_cpu": 0.04, "foreign_cpu_by": "cron", "swapped_pages": 0.0}),
    ]
    telemetry = figures(ranks, {"samples_per_s": 400.0}, alone=True)
    assert telemetry == {
        "cpu_util": pytest.approx(1.0),  # two ranks with 2 of the 4 cores each
        "peak_memory_gb": 1.5,
        "foreign_cpu": 0.04,
        "foreign_cpu_by": "cron",
        "swapped_pages": 0,
        "energy_j": pytest.approx(600),
        "power_w": pytest.approx(400),
        "energy_j_per_sample": pytest.approx(1),
        "energy_source": "RAPL",
    }
    ranks[1] = seen({"cpu": cpu}, rank=1, host="b")  # whose energy nobody reads
    assert "energy_j" not in figures(ranks, {}, alone=True)


def test_trial_without_samples_has_no_figures():
    assert figures([seen({"cpu": {"time_s": ()}}, phases=(), ticks=0)], {}, alone=True) == {}


DONE = TrialOutcome(note="slow", wall_s=1.0, metrics={"peak_memory_gb": 7.0})


def readings(rank=0, failure="", ticks=2):
    columns = {"time_s": [0.0, 1.0, 3.0], "cpu_s": [5.0, 6.0, 7.0], "rss_gb": [1.0, 2.0, math.nan]}
    columns["energy_j"] = [50.0, 60.0, 70.0]
    phases = [(0.5, "training"), (1.0, "")]
    return seen({"cpu": columns}, rank, phases=phases, cores=2, failure=failure, ticks=ticks)


def test_samples_are_a_table_with_every_column(tmp_path):
    with_telemetry(DONE, [readings(0), readings(1)], trial("t", "quick", ranks=2), tmp_path)
    table = pd.read_parquet(tmp_path / TELEMETRY)
    assert list(table.columns) == ["rank", "host", "device", "time_s", "phase", *COLUMNS]
    assert list(table["rank"]) == [0] * 3 + [1] * 3 and list(table["phase"][:3]) == ["", "training", ""]
    assert list(table["energy_j"][:3]) == [0, 10, 20]
    assert list(table["cpu_util"][1:3]) == [1.0, 0.5] and math.isnan(table["cpu_util"][0])
    assert table["gpu_util"].isna().all() and table["rss_gb"].isna().sum() == 2


def test_own_metrics_take_precedence_and_failures_are_noted(tmp_path):
    outcome = with_telemetry(DONE, [readings(failure="NVML: lost")], trial("t", "quick", timing="exclusive"), tmp_path)
    assert outcome.metrics["peak_memory_gb"] == 7.0 and outcome.metrics["energy_j"] == pytest.approx(5.0)
    assert outcome.note == "slow; telemetry: NVML: lost"


def test_idle_processes_on_the_gpus_are_noted(tmp_path):
    beside = replace(readings(), foreign_load={"foreign_gpu_processes": 0.0, "idle_gpu_processes": 2.0})
    outcome = with_telemetry(DONE, [beside], trial("t", "quick"), tmp_path)
    assert outcome.metrics["idle_gpu_processes"] == 2 and outcome.note == "slow; 2 idle processes of others on the GPUs"


@pytest.mark.parametrize(
    ("machines", "told"),
    [
        (["0a", "0a"], {"machine": "0a"}),
        (["0a", "0b", "0a"], {"machine": "0a", "machines": "0a 0b"}),
        (["0a", ""], {"machine": "0a"}),
        (["", "0b"], {}),
    ],
)
def test_provenance_names_all_machines(machines, told, tmp_path):
    seen = [replace(readings(rank), machine=machine) for rank, machine in enumerate(machines)]
    trained = replace(DONE, provenance={"host": "vm"})
    outcome = with_telemetry(trained, seen[::-1], trial("t", "quick", ranks=len(seen)), tmp_path)
    assert outcome.provenance == {"host": "vm"} | told


def test_lost_rank_leaves_samples_but_no_figures(tmp_path):
    outcome = with_telemetry(DONE, [readings(1)], trial("t", "quick", ranks=2), tmp_path)
    assert outcome.metrics == DONE.metrics and (tmp_path / TELEMETRY).exists()


def test_trial_without_samples_has_no_file(tmp_path):
    (tmp_path / TELEMETRY).write_bytes(b"of an earlier attempt")
    with_telemetry(DONE, [readings(ticks=0)], trial("t", "quick"), tmp_path)
    assert not (tmp_path / TELEMETRY).exists()
    assert with_telemetry(DONE, [], trial("t", "quick"), tmp_path) is DONE


def test_unwritable_folder_is_noted(tmp_path):
    outcome = with_telemetry(DONE, [readings()], trial("t", "quick"), tmp_path / "nowhere")
    assert outcome.status is Status.OK and "telemetry" in outcome.note and "No such file" in outcome.note
