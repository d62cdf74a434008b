"""Branches in the training loop: trials that continue another one at another batch and rate."""

import math
from typing import Any

import pytest

from tests.unit.trainables.ranks import request, run, run_two
from tests.unit.trainables.supervised.test_language_models import BATCH, CONFIG, LENGTH, SETTINGS

EPOCH = 4 * LENGTH * BATCH
POINTS = (EPOCH, 2 * EPOCH)
WHOLE: dict[str, Any] = CONFIG | {
    "model": CONFIG["model"] | {"dropout": 0.1},
    "data": {"name": "text", "epoch_tokens": EPOCH, "validation_tokens": 512},
    "schedule": {"name": "cosine", "warmup": 0.1},
    "budget": {"tokens": 4 * EPOCH},
}
WHOLE["model"] |= {"vocabulary": 256}


def base(folder, **other):
    settings = SETTINGS | {"branch_points": POINTS, "clip_grad_norm": 1.0}
    return {"config": WHOLE | {"trainable": settings}, "trial_id": "base", "trial_dir": str(folder / "base")} | other


def branch(folder, tokens, window=EPOCH, config=None):
    own = {"branch_base": "base", "branch_tokens": tokens, "branch_window_tokens": window}
    settings = SETTINGS | own | {"clip_grad_norm": 1.0}
    (folder / "branch").mkdir(exist_ok=True)
    return {
        "config": WHOLE | (config or {}) | {"trainable": settings},
        "trial_id": "branch",
        "trial_dir": str(folder / "branch"),
    }


def rows(answer):
    assert answer["status"] == "ok", answer["trace"]
    return [{key: row[key] for key in ("epoch", "tokens", "loss", "val_loss", "lr")} for row in answer["rows"]]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "base").mkdir()
    return tmp_path


@pytest.mark.parametrize("point", [POINTS[0], pytest.param(POINTS[1], marks=pytest.mark.slow)])
def test_branch_at_the_same_batch_continues_its_base(folder, point):
    whole = rows(run(request(shares=(BATCH,), **base(folder))))
    branch_rows = rows(run(request(shares=(BATCH,), **branch(folder, point, 2 * EPOCH))))
    first = point // EPOCH
    assert branch_rows == whole[first : first + 2]


@pytest.mark.slow
def test_ranks_of_a_branch_continue_those_of_its_base(folder, pair):
    whole = rows(run_two(pair, shares=(BATCH // 2,) * 2, **base(folder))[0])
    assert rows(run_two(pair, shares=(BATCH // 2,) * 2, **branch(folder, EPOCH))[0]) == whole[1:2]


def test_branch_has_its_batch_rate_and_optimizer_settings(folder):
    whole = rows(run(request(shares=(BATCH,), lr=0.01, **base(folder))))
    changed = {"optimizer": {"name": "adamw", "weight_decay": 0.4, "betas": [0.9, 0.95]}}
    larger, other = (
        run(request(shares=(4 * BATCH,), lr=0.02, **branch(folder, EPOCH, config=config))) for config in ({}, changed)
    )
    [row] = rows(larger)
    assert (row["epoch"], row["tokens"]) == (2, 2 * EPOCH)
    # Four of the base's steps are one of the branch's; the last one begins three of the base's steps earlier.
    assert larger["metrics"]["steps"] == 4 + 1
    position = (2 * EPOCH - 4 * BATCH * LENGTH) / (4 * EPOCH)
    assert row["lr"] == pytest.approx(0.02 * 0.5 * (1 + math.cos(math.pi * (position - 0.1) / 0.9)), rel=1e-6)
    assert row["loss"] != whole[1]["loss"] and rows(other)[0]["val_loss"] != row["val_loss"]


def test_interrupted_branch_comes_to_the_same_end(folder):
    run(request(shares=(BATCH,), **base(folder)))
    whole = rows(run(request(shares=(BATCH,), **branch(folder, EPOCH, 2 * EPOCH))))

    def crash(row):
        if row["epoch"] == 3:
            raise RuntimeError("on purpose")

    from trainables import rank

    again = branch(folder, EPOCH, 2 * EPOCH) | {"trial_id": "again", "trial_dir": str(folder / "again")}
    (folder / "again").mkdir()
    again["config"]["trainable"] |= {"checkpoint_every_s": 0.0}
    assert rank.run(request(shares=(BATCH,), **again), crash, lambda: False).status == "failed"
    answer = run(request(shares=(BATCH,), **again))
    assert "continued in epoch 3" in answer["note"] and rows(answer) == whole


def test_interrupted_base_saves_a_point_that_was_added_before_its_checkpoint(folder):
    from trainables import rank

    def with_points(*points):
        asked = base(folder)
        asked["config"]["trainable"] |= {"branch_points": points, "checkpoint_every_s": 0.0}
        return request(shares=(BATCH,), **asked)

    def crash(row):
        if row["epoch"] == 4:
            raise RuntimeError("on purpose")

    assert rank.run(with_points(2 * EPOCH), crash, lambda: False).status == "failed"
    added = run(with_points(EPOCH, 2 * EPOCH))
    assert "continued" not in added["note"] and rows(added)[-1]["tokens"] == 4 * EPOCH
    assert rows(run(request(shares=(BATCH,), **branch(folder, EPOCH)))) == rows(added)[1:2]


def test_interrupted_base_continues_after_its_branch_points(folder):
    from trainables import rank

    asked = base(folder)
    asked["config"]["trainable"] |= {"checkpoint_every_s": 0.0}

    def crash(row):
        if row["epoch"] == 4:
            raise RuntimeError("on purpose")

    assert rank.run(request(shares=(BATCH,), **asked), crash, lambda: False).status == "failed"
    assert "continued in epoch" in run(request(shares=(BATCH,), **asked))["note"]


def test_branch_without_a_checkpoint_fails(folder):
    answer = run(request(shares=(BATCH,), **branch(folder, EPOCH)))
    assert answer["status"] == "failed" and "no checkpoint" in answer["note"]


def test_branch_that_misses_tokens_fails(folder):
    run(request(shares=(BATCH,), **base(folder)))
    answer = run(request(shares=(3 * BATCH,), **branch(folder, EPOCH)))
    assert answer["status"] == "failed" and str(2 * EPOCH) in answer["note"]
