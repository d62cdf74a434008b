import math
from array import array
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.journal.outcome import Outcome
from orchestrator.storage.layout import TELEMETRY
from orchestrator.telemetry.file import COLUMNS
from orchestrator.telemetry.outcome import with_telemetry
from orchestrator.telemetry.readings import Readings
from sweeps.status import Status
from tests.contract.trials import trial

DONE = Outcome(status=Status.OK, note="slow", wall_s=1.0, metrics={"peak_memory_gb": 7.0})


def readings(rank: int = 0, failure: str = "", ticks: int = 2) -> Readings:
    columns = {
        "time_s": [0.0, 1.0, 3.0],
        "cpu_s": [5.0, 6.0, 7.0],
        "rss_gb": [1.0, 2.0, math.nan],
        "energy_j": [50.0, 60.0, 70.0],
    }
    return Readings(
        rank=rank,
        host="a",
        cores=2,
        series={"cpu": {name: array("d", values) for name, values in columns.items()}},
        phases=[(0.5, "training"), (1.0, "")],
        foreign_load={},
        failure=failure,
        ticks=ticks,
    )


def test_samples_are_a_table_with_every_column(tmp_path: Path) -> None:
    with_telemetry(DONE, [readings(0), readings(1)], trial("t", "quick", ranks=2), tmp_path)
    table = pd.read_parquet(tmp_path / TELEMETRY)
    assert list(table.columns) == ["rank", "host", "device", "time_s", "phase", *COLUMNS]
    assert list(table["rank"]) == [0] * 3 + [1] * 3 and list(table["phase"][:3]) == ["", "training", ""]
    assert list(table["energy_j"][:3]) == [0, 10, 20]
    assert list(table["cpu_util"][1:3]) == [1.0, 0.5] and math.isnan(table["cpu_util"][0])
    assert table["gpu_util"].isna().all() and table["rss_gb"].isna().sum() == 2


def test_figures_stand_behind_the_trials_own_and_a_failure_in_the_note(tmp_path: Path) -> None:
    outcome = with_telemetry(DONE, [readings(failure="NVML: lost")], trial("t", "quick", timing="exclusive"), tmp_path)
    assert outcome.metrics["peak_memory_gb"] == 7.0 and outcome.metrics["energy_j"] == pytest.approx(5.0)
    assert outcome.note == "slow; telemetry: NVML: lost"


@pytest.mark.parametrize(
    ("machines", "told"),
    [
        (["0a", "0a"], {"machine": "0a"}),
        (["0a", "0b", "0a"], {"machine": "0a", "machines": "0a 0b"}),
        (["0a", ""], {"machine": "0a"}),
        (["", "0b"], {}),
    ],
)
def test_a_gang_tells_of_all_its_machines(machines: list[str], told: dict[str, str], tmp_path: Path) -> None:
    seen = [replace(readings(rank), machine=machine) for rank, machine in enumerate(machines)]
    trained = replace(DONE, provenance={"host": "vm"})
    outcome = with_telemetry(trained, seen[::-1], trial("t", "quick", ranks=len(seen)), tmp_path)
    assert outcome.provenance == {"host": "vm"} | told


def test_a_trial_with_a_lost_rank_has_samples_but_no_figures(tmp_path: Path) -> None:
    outcome = with_telemetry(DONE, [readings(1)], trial("t", "quick", ranks=2), tmp_path)
    assert outcome.metrics == DONE.metrics and (tmp_path / TELEMETRY).exists()


def test_what_is_shorter_than_a_sample_leaves_no_file_and_none_of_an_earlier_attempt(tmp_path: Path) -> None:
    (tmp_path / TELEMETRY).write_bytes(b"of an earlier attempt")
    with_telemetry(DONE, [readings(ticks=0)], trial("t", "quick"), tmp_path)
    assert not (tmp_path / TELEMETRY).exists()
    assert with_telemetry(DONE, [], trial("t", "quick"), tmp_path) is DONE


def test_a_folder_that_takes_no_file_is_told(tmp_path: Path) -> None:
    outcome = with_telemetry(DONE, [readings()], trial("t", "quick"), tmp_path / "nowhere")
    assert outcome.status is Status.OK and "telemetry was not written: No such file" in outcome.note
