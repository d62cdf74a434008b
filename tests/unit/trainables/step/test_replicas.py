from typing import Any

import pytest

from tests.unit.trainables.ranks import CONFIG, Processes, rendezvous, request, run


def test_the_first_of_two_independent_models_is_the_one_that_trains_alone(pair: Processes) -> None:
    sections = {"budget": {"epochs": 2}, "data": {"name": "digits", "augment": {"flip": True}}}
    alone = run(request(shares=(64,), config=sections))["metrics"]
    asked: dict[str, Any] = {"shares": (64, 64), "strategy": "independent", "config": sections}
    place = {"gang_id": "independent", "rendezvous": rendezvous()}
    answers = pair.call(run, *((request(rank=rank, **asked, **place),) for rank in range(2)))
    assert all(answer["status"] == "ok" for answer in answers), answers[0]["trace"]
    metrics = answers[0]["metrics"]
    for figure in ("accuracy", "val_accuracy", "val_loss", "steps"):
        assert metrics[figure] == alone[figure]
    assert metrics["samples"] == 2 * alone["samples"]
    assert metrics["samples_per_s"] == pytest.approx(128 * metrics["window_steps"] / metrics["window_s"])
    first, second = metrics["replica_accuracies"]
    assert first == alone["accuracy"] and second != first
    assert "2 independent models, of which the first is reported" in answers[0]["note"]
    assert answers[1]["metrics"]["val_loss"] != metrics["val_loss"] and answers[1]["rows"] == []


def test_one_rank_alone_is_a_single_process() -> None:
    settings = CONFIG | {"budget": {"steps": 5}}
    answers = [run(request(strategy=strategy, config=settings)) for strategy in ("single", "independent")]
    assert answers[0]["metrics"]["loss"] == answers[1]["metrics"]["loss"] and answers[1]["note"] == ""


def test_independent_models_share_no_batch_norm(pair: Processes) -> None:
    sections = {"model": {"name": "cnn10", "batch_norm": "sync"}}
    place = {"gang_id": "independent sync", "rendezvous": rendezvous(), "strategy": "independent"}
    asked = [request(rank=rank, shares=(8, 8), config=sections, **place) for rank in range(2)]
    notes = [answer["note"] for answer in pair.call(run, *((each,) for each in asked))]
    assert all("strategy=independent trains one on each" in note for note in notes), notes
