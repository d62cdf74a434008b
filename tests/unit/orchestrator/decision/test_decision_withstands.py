"""Whatever a sweep left behind, its end is told: no frame breaks the recommendation, the laws or the tables."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.analysis.trials import axis_columns, collect
from orchestrator.config.request import Terms
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import OBJECTIVES
from orchestrator.store.record import TrialRecord
from orchestrator.tables.recommendation import recommendation_json, recommendation_markdown
from orchestrator.tables.scaling import scaling
from sweeps.status import Status

RecordOf = Callable[..., TrialRecord]
VALUES = (None, float("nan"), float("inf"), -1.0, 0.0, 1e-12, 0.5, 0.5, 0.9, 3.0, 1e12, "text", True)
METRICS = ("samples_per_s", "samples", "train_s", "val_accuracy", "accuracy", "time_to_target_s", "energy_j_per_sample")
AXES = {"gpus": "gpus", "device_batch_size": "device_batch_size", "lr_rule": "lr_rule"}


def any_record(record_of: RecordOf, chance: random.Random) -> TrialRecord:
    metrics = {name: chance.choice(VALUES) for name in METRICS if chance.random() < 0.8}
    model = chance.choice([[], [], [1, "x"], ["mlp"]])
    axes: dict[str, Any] = {"model": model[0]} if model else {}
    return record_of(
        chance.choice([0.25, 1, 2, 4]),
        chance.choice([0, 1, 2]),
        chance.choice([Status.OK] * 6 + list(Status)),
        batch=chance.choice([1, 32]),
        lr_rule=chance.choice(["none", "linear"]),
        axes=axes,
        metrics=metrics | {"noise_scale": chance.choice(VALUES), "n_params": chance.choice(VALUES)},
        device=chance.choice(["cpu", "cuda"]),
    )


@pytest.mark.parametrize("seed", range(24))
def test_any_records(record_of: RecordOf, seed: int) -> None:
    chance = random.Random(seed)
    records = {
        each.trial_id: each for each in (any_record(record_of, chance) for _ in range(chance.choice([1, 2, 8, 40])))
    }
    price = chance.choice([None, 2.0])
    frames = collect(list(records.values()), scaling=chance.choice(["weak", "strong"]), reference_batch_size=32)
    target = chance.choice([None, 0.9])
    terms = Terms(
        objective=chance.choice(OBJECTIVES),
        target=target,
        price_per_gpu_hour=price,
        axes=AXES | axis_columns(list(records.values())),
    )
    found = decide(*frames, terms)
    assert found.sentence.startswith(("Use ", "The ", "No recommendation")) or terms.objective == "none"
    assert recommendation_markdown(found, "demo").startswith(f"# {found.title}: demo")
    assert json.loads(recommendation_json(found, "demo"))["sentence"] == found.sentence
    assert scaling(*frames)[0].startswith("# Scaling laws")
