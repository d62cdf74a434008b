"""Check the contract of every trainable with the back end that calls it."""

import json
import math
import sys

import pytest

from tests.unit.trainables import ranks
from tests.unit.trainables.ranks import fields_of, run, without_times
from trainables import rank

NAMES = ("noop", "supervised.training", "command.training")
TRAINABLES = [*(f"trainables.{name}:train" for name in NAMES), "studies.conv2d:train"]
COMMAND = """
import json, random, sys
seed, batch = map(int, sys.argv[1:])
draw = random.Random(seed)
for epoch in (1, 2):
    steps = 3 * epoch
    print(json.dumps({"epoch": epoch, "loss": draw.random(), "samples": steps * batch, "steps": steps}))
print(json.dumps({"accuracy": 0.5, "train_s": 0.2, "epochs": 2, "samples": 6 * batch, "steps": 6}))
"""
SETTINGS = {
    "argv": [
        sys.executable,
        "-S",
        "-c",
        COMMAND.replace("{", "{{").replace("}", "}}"),
        "{seed}",
        "{global_batch_size}",
    ],
    "metrics": {name: None for name in ("loss", "accuracy", "train_s", "epochs", "samples", "steps")},
}
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
    *("val_samples", "test_samples"),
    *("flops_per_sample", "matrix_flops_per_s", "mfu"),
    *("step_s", "step_data_s", "step_host_s", "step_compute_s", "step_communication_s", "step_imbalance_s"),
    "slowest_rank",
    *("work_source", "rate_source", "rates", "own_length"),
}
pytestmark = pytest.mark.parametrize("trainable", TRAINABLES)


def request(trainable):
    return ranks.request(trainable, config={"trainable": SETTINGS} if "command" in trainable else None)


def test_the_result_is_json_with_known_columns(trainable):
    answer = run(request(trainable))
    assert answer["status"] == "ok" and answer["note"] == answer["trace"] == "", answer["trace"]
    assert answer["reusable"] and answer["rank"] == 0
    assert {"epochs", "samples", "steps", "train_s"} <= set(answer["metrics"]) <= COLUMNS
    reported = {name: answer[name] for name in ("metrics", "provenance", "rows")}
    assert json.loads(json.dumps(reported, allow_nan=False)) == reported


def test_rows_count_the_epochs(trainable):
    answer = run(request(trainable))
    assert [row["epoch"] for row in answer["rows"]] == list(range(1, math.ceil(answer["metrics"]["epochs"]) + 1))
    assert (answer["rows"][-1]["samples"], answer["rows"][-1]["steps"]) == (
        answer["metrics"]["samples"],
        answer["metrics"]["steps"],
    )


def test_equal_requests_have_equal_results(trainable):
    assert without_times(run(request(trainable))) == without_times(run(request(trainable)))


def test_a_stop_request_is_no_error(trainable):
    assert rank.run(request(trainable), lambda row: None, lambda: True).status == "ok"


def test_a_listener_that_raises_ends_the_trial(trainable):
    def broken(row):
        raise OSError("nobody listens")

    answer = fields_of(rank.run(request(trainable), broken, lambda: False))
    assert (answer["status"], answer["reusable"]) == ("failed", False) and "nobody listens" in answer["note"]
