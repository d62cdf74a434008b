from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.collection.collector import collect
from orchestrator.config.request import Request
from orchestrator.journal.record import TrialRecord
from orchestrator.tables import predict as predict_table
from orchestrator.tables.predict import lines, predicted
from sweeps.mistakes import MistakesError
from tests.unit.orchestrator.requests import request as shipped_request

RecordOf = Callable[..., TrialRecord]


@pytest.fixture
def frames(record_of: RecordOf) -> Any:
    def trial(gpus: int, seed: int, rule: str) -> TrialRecord:
        speed = 100 * gpus / (1 + 0.1 * (gpus - 1)) * (1 + seed / 100)
        about = {"device_model": "NVIDIA H200", "node_gpus": 4}
        return record_of(gpus, seed, lr_rule=rule, metrics={"samples_per_s": speed, "n_params": 10}, provenance=about)

    grid = [(gpus, "none") for gpus in (1, 2, 4)] + [(gpus, "linear") for gpus in (1, 2)]
    return collect([trial(g, s, rule) for g, rule in grid for s in (0, 1, 2)], scaling="weak", reference_batch_size=32)


def request(**predict: Any) -> Request:
    given = {"gpus": [3], "gpus_per_node": None, "bandwidth_gb_s": None, "latency_s": None} | predict
    return shipped_request(predict=given, name="demo")


def test_lines_are_cells_alike_but_for_gpus(frames: Any) -> None:
    found = lines(*frames)
    assert [(line.name, sorted(set(line.gpus))) for line in found] == [
        ("device_batch_size=32, lr_rule=none", [1, 2, 4]),
        ("device_batch_size=32, lr_rule=linear", [1, 2]),
    ]


def test_the_table_says_what_the_measurements_saw(frames: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_table, "frames", lambda layout, request: frames)
    told = predicted(request())
    assert "Measured: up to 4 GPUs within one node (a node has 4)." in told
    assert "1 group of cells has fewer than 3 GPU counts" in told
    # 300 / 1.2 at seed 0; the geometric mean of 1, 1.01, 1.02 times that.
    assert "| device_batch_size=32, lr_rule=none | 3      | 96 " in told and "252 [" in told


def test_all_that_is_refused_is_told_at_once(frames: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_table, "frames", lambda layout, request: frames)
    with pytest.raises(MistakesError) as caught:
        predicted(request(gpus=[8, 64]))
    assert [mistake.partition(": ")[2][:12] for mistake in caught.value.mistakes] == [
        "8 GPUs take ",
        "64 GPUs are ",
        "64 GPUs take",
    ]
