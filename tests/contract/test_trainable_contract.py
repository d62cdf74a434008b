"""What every trainable promises to the back end that calls it."""

import json
from typing import Any

import pytest

from tests.unit.trainables.ranks import request, run, without_times
from trainables import rank

TRAINABLES = ["trainables.noop:train", "trainables.supervised:train"]
COLUMNS = {
    "first_epoch_s",
    "epoch_s",
    "train_s",
    "samples_per_s",
    "window_s",
    "window_steps",
    "accuracy",
    "val_accuracy",
    "val_loss",
    "loss",
    "time_to_target_s",
    "epochs",
    "samples",
    "steps",
    "peak_memory_gb",
    "n_params",
}
pytestmark = pytest.mark.parametrize("trainable", TRAINABLES)


def test_the_answer_is_json_with_known_columns(trainable: str) -> None:
    answer = run(request(trainable))
    assert answer["status"] == "ok" and answer["note"] == answer["trace"] == "", answer["trace"]
    assert answer["reusable"] and answer["rank"] == 0
    assert {"epochs", "samples", "steps", "train_s"} <= set(answer["metrics"]) <= COLUMNS
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_rows_count_the_epochs(trainable: str) -> None:
    answer = run(request(trainable))
    assert [row["epoch"] for row in answer["rows"]] == list(range(1, answer["metrics"]["epochs"] + 1))
    assert (answer["rows"][-1]["samples"], answer["rows"][-1]["steps"]) == (
        answer["metrics"]["samples"],
        answer["metrics"]["steps"],
    )


def test_equal_requests_have_equal_answers(trainable: str) -> None:
    assert without_times(run(request(trainable))) == without_times(run(request(trainable)))


def test_being_asked_to_stop_is_no_error(trainable: str) -> None:
    assert rank.run(request(trainable), lambda row: None, lambda: True)["status"] == "ok"


def test_a_listener_that_raises_ends_the_trial(trainable: str) -> None:
    def broken(row: dict[str, Any]) -> None:
        raise OSError("nobody listens")

    answer = rank.run(request(trainable), broken, lambda: False)
    assert (answer["status"], answer["reusable"]) == ("failed", False) and "nobody listens" in answer["note"]
