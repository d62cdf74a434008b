from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.trials import collect
from orchestrator.config.request import Request
from orchestrator.statistics.prediction import Link, predict
from orchestrator.store.history import History
from orchestrator.store.journal import replay
from orchestrator.store.record import TrialRecord
from orchestrator.tables import scaling as predict_table
from orchestrator.tables.scaling import lines, predicted, scaling
from sweeps.errors import ConfigError
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.requests import request as shipped_request

ROOT = Path(__file__).parents[4]


def trial(gpus: int, seed: int, rule: str = "none") -> TrialRecord:
    """By Amdahl's law with α = .1, and E = 1000 (1 + B/200) samples to the target."""
    speed = 100 * gpus / (1 + 0.1 * (gpus - 1)) * (1 + (seed - 1) / 1000)
    reached = 1000 * (1 + 32 * gpus / 200) / speed
    return record_of(
        gpus, seed, lr_rule=rule, metrics={"samples_per_s": speed, "time_to_target_s": reached, "noise_scale": 150.0}
    )


def test_laws_and_critical_batch() -> None:
    records = [trial(gpus, seed) for gpus in (1, 2, 4, 8) for seed in range(3)]
    records += [trial(gpus, seed, "linear") for gpus in (1, 2) for seed in range(3)]
    told = scaling(*collect(records, scaling="weak", reference_batch_size=32))[0]
    amdahl, usl = (line for line in told.splitlines() if "| 1, 2, 4, 8" in line)
    assert "Amdahl" in amdahl and "| 100 [" in amdahl and "| 0.1 [" in amdahl and " 10.0×" in amdahl
    assert "USL" in usl and "| 0.1 [" in usl
    assert "1 group of cells" in told and "3 GPU counts" in told
    (batch,) = (line for line in told.splitlines() if "lr_rule=none, lr_multiplier=1.0" in line)
    assert "| 200 [" in batch and "150" in batch
    (other,) = (line for line in told.splitlines() if "lr_rule=linear, lr_multiplier=1.0" in line)
    assert other.split("|")[2].strip() == ""


def test_laws_on_invalid_timings_have_a_sentence() -> None:
    sound = [trial(gpus, seed) for gpus in (1, 2, 4, 8) for seed in range(3)]
    packed = [replace(each, timing="shared") if each.gpus == 8 else each for each in sound]
    assert "1 cell has no valid" in scaling(*collect(packed, scaling="weak"))[0]
    assert "no valid" not in scaling(*collect(sound, scaling="weak"))[0]


def test_one_gpu_count_has_no_law() -> None:
    told, tables = scaling(*collect([record_of(1, 0, metrics={"samples_per_s": 5.0})], scaling="weak"))
    assert tables == [] and told.startswith("# Scaling laws\n\n1 group")


@pytest.fixture
def frames() -> Any:
    def trial(gpus: int, seed: int, rule: str) -> TrialRecord:
        speed = 100 * gpus / (1 + 0.1 * (gpus - 1)) * (1 + seed / 100)
        about = {"device_model": "NVIDIA H200", "node_gpus": 4}
        return record_of(gpus, seed, lr_rule=rule, metrics={"samples_per_s": speed, "n_params": 10}, provenance=about)

    grid = [(gpus, "none") for gpus in (1, 2, 4)] + [(gpus, "linear") for gpus in (1, 2)]
    return collect([trial(g, s, rule) for g, rule in grid for s in (0, 1, 2)], scaling="weak", reference_batch_size=32)


def request(**predict: Any) -> Request:
    given = {"gpus": [3], "bandwidth_gb_s": None, "latency_s": None} | predict
    return shipped_request(predict=given, name="demo")


def test_a_line_has_cells_that_differ_in_gpus(frames: Any) -> None:
    found = lines(*frames)
    assert [(line.name, sorted(set(line.gpus))) for line in found] == [
        ("device_batch_size=32, lr_rule=none", [1, 2, 4]),
        ("device_batch_size=32, lr_rule=linear", [1, 2]),
    ]


def test_predictions_follow_what_was_measured(frames: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_table, "frames", lambda layout, request: frames)
    told = predicted(request())
    assert "up to 4 GPUs" in told and "1 group" in told
    # 300 / 1.2 at seed 0; the geometric mean of 1, 1.01, 1.02 times that.
    assert "| device_batch_size=32, lr_rule=none | 3      | 96 " in told and "252 [" in told


def test_all_refused_gpu_counts_are_reported(frames: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_table, "frames", lambda layout, request: frames)
    with pytest.raises(ConfigError) as caught:
        predicted(request(gpus=[8, 64]))
    assert [message.partition(": ")[2][:12] for message in caught.value.errors] == [
        "8 GPUs take ",
        "64 GPUs are ",
        "64 GPUs take",
    ]


def test_four_gpus_are_predicted_from_one_and_two_and_the_measured_exchange() -> None:
    """The kept trials took 3.75 times as many samples on four; a line through one and two by Amdahl's law says 3.38."""
    records = History(replay(ROOT / "docs/results/published/input_pipeline/journal.jsonl").records).rows.values()
    kept = [each for each in records if each.axes["trainable.input"] == "resident" and each.device_batch_size == 128]
    rates = {n: [each.metrics["samples_per_s"] for each in kept if each.gpus == n] for n in (1, 4)}
    measured = sum(rates[4]) / sum(rates[1])
    (line,) = lines(*collect([each for each in kept if each.gpus < 4], scaling="weak"))
    link = Link(gpus_per_node=4)
    assert line.refusals(4, link) == []
    found = predict(line, 4, link).samples_per_s.map(lambda rate: rate / line.rates[line.gpus == 1].mean())
    assert 3.2 < float(found.lo) < 3.5 < float(found.point) < measured < float(found.hi) < 3.9
