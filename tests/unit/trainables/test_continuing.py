"""A trial that was interrupted and goes on comes to the same bits as one that was not."""

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.trainables.ranks import CONFIG, context_of, rendezvous, request, supervised_trial, without_times
from trainables import checkpoints, isolation, rank
from trainables.context import Context
from trainables.supervised.training import SupervisedTrial

OFTEN = CONFIG["trainable"] | {"checkpoint_every_s": 0.0}
AUGMENT = {"crop_padding": 1, "flip": True, "cutout": 2}
DIGITS = {"name": "digits", "augment": AUGMENT, "subset": {"train": 300, "test": 50}}
FEW = DIGITS | {"subset": {"train": 60, "test": 20}}
FEWER = DIGITS | {"subset": {"train": 30, "test": 10}}
DROPOUT = {"name": "studies.models:mnist_cnn"}
NORMED = {"name": f"{__name__}:normed"}
GROWING = {"schedule": {"name": "increase_batch", "milestones": [0.4, 0.7], "gamma": 0.5}}
SMALL = {"data": DIGITS, "budget": {"epochs": 3}, "schedule": {"name": "onecycle"}}

CASES: dict[str, dict[str, Any]] = {
    "momentum": {"config": SMALL},
    "dropout": {"config": SMALL | {"model": DROPOUT, "data": FEW}, "shares": (10,)},
    "batch norm, bf16": {
        "config": SMALL | {"model": NORMED, "trainable": OFTEN | {"precision": "bf16"}, "data": FEWER},
        "shares": (12,),
    },
    "adam, accumulation": {"config": SMALL | {"optimizer": {"name": "adam"}}, "shares": (16,), "grad_accum_steps": 3},
    "lamb": {"config": SMALL | {"optimizer": {"name": "lamb"}}, "lr": 0.01},
    "adascale": {"config": SMALL, "shares": (16,), "grad_accum_steps": 8, "rule": "adascale"},
    "growing batch, lars, accumulation": {
        "config": SMALL | GROWING | {"optimizer": {"name": "lars"}},
        "shares": (8,),
        "grad_accum_steps": 2,
    },
    "fp16": {"config": SMALL | {"trainable": OFTEN | {"precision": "fp16"}}},
    "loader": {"config": SMALL | {"trainable": OFTEN | {"input": "loader", "loader": {"workers": 1}}}},
    "loader without workers": {
        "config": SMALL | {"model": DROPOUT, "trainable": OFTEN | {"input": "loader", "loader": {"workers": 0}}}
    },
}


def normed(*, input_shape, num_classes):
    body = nn.Sequential(nn.Conv2d(input_shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return body.append(nn.Linear(4 * (input_shape[1] - 2) * (input_shape[2] - 2), num_classes))


class StopAfter:
    """Asks for the end when it is asked so many times whether to stop."""

    def __init__(self, looks):
        self._looks = looks

    def __call__(self):
        self._looks -= 1
        return self._looks < 0


def bits(asked, folder, looks=None):
    """Train in this process, from a clean slate; the final weights, and all that was told."""
    rows: list[dict[str, Any]] = []
    stop = StopAfter(looks) if looks is not None else lambda: False
    context = context_of(replace(asked, trial_dir=folder), rows.append, stop)
    isolation.enter(asked.trial.trainable, seed=context.seed, threads=1)
    trial = supervised_trial(asked, context)
    try:
        trial.train()
        trial.evaluate()
        weights = {name: value.tolist() for name, value in trial.replica.model.state_dict().items()}
    finally:
        trial.close()
        isolation.leave()
    told = without_times({"status": "", "metrics": dict(context.metrics), "rows": rows})
    return {"weights": weights, "told": told, "stopped": trial.stopped, "remarks": context.remarks}


def asked_of(case, **other):
    given = {key: value for key, value in (case | other).items() if key not in ("config", "rule")}
    asked = request(config={"trainable": OFTEN} | case["config"], **given)
    if "rule" not in case:
        return asked
    lr = replace(asked.trial.lr, rule=case["rule"], reference_batch_size=32)
    return replace(asked, trial=replace(asked.trial, lr=lr))


SLOW = "loader without workers"
NAMES = [pytest.param(name, marks=pytest.mark.slow if name == SLOW else ()) for name in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_stop_within_an_epoch_changes_no_bit(name, tmp_path):
    asked = asked_of(CASES[name])
    whole = bits(asked, None)
    assert not whole["stopped"]
    for looks in (1, 2):  # twice, further on
        stopped = bits(asked, tmp_path, looks)
        assert stopped["stopped"] and stopped["weights"] != whole["weights"]
    went_on = bits(asked, tmp_path)
    assert not went_on["stopped"] and any("continued in epoch" in remark for remark in went_on["remarks"])
    assert went_on["weights"] == whole["weights"]
    assert went_on["told"] == whole["told"]


def test_crash_after_an_epoch_changes_no_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "MAX_TIME_SHARE", float("inf"))
    asked = asked_of(CASES["momentum"])
    whole = bits(asked, None)

    def crash(row):
        if row["epoch"] == 3:
            raise RuntimeError("on purpose")

    answer = rank.run(replace(asked, trial_dir=tmp_path), crash, lambda: False)
    assert answer.status == "failed"
    went_on = bits(asked, tmp_path)
    [remark] = went_on["remarks"]
    assert "epoch 3" in remark and "9 steps" in remark
    assert (went_on["weights"], went_on["told"]) == (whole["weights"], whole["told"])


@pytest.mark.parametrize("name", ["momentum", "growing batch, lars, accumulation"])
def test_a_crash_after_the_last_epoch_repeats_none(name, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "MAX_TIME_SHARE", float("inf"))
    asked = replace(asked_of(CASES[name]), trial_dir=tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(SupervisedTrial, "evaluate", lambda trial: 1 / 0)
        assert rank.run(asked, lambda row: None, lambda: False).status == "failed"
    answer = rank.run(asked, lambda row: None, lambda: False)
    assert answer.status == "ok" and answer.metrics["epochs"] == 3, answer.note


def both(pair, asked, folder, looks=None):
    asked = replace(asked, rendezvous=rendezvous(), gang_id=f"{folder}{looks}")
    own = (replace(asked, rank=rank) for rank in (0, 1))
    return pair.call(bits, *((of_rank, folder, looks if of_rank.rank == 1 else None) for of_rank in own))


PAIRS: dict[str, dict[str, Any]] = {
    "dropout, unequal": {"config": SMALL | {"model": DROPOUT, "data": FEW}, "shares": (7, 3)},
    "adascale, accumulation": {"config": SMALL, "shares": (8, 8), "grad_accum_steps": 4, "rule": "adascale"},
    "loader, growing batch": {
        "config": SMALL | GROWING | {"trainable": OFTEN | {"input": "loader", "loader": {"workers": 1}}},
        "shares": (16, 16),
    },
    "shares by speed": {"config": SMALL, "shares": (32, 32), "strategy": "ddp_unequal"},
    "independent": {"config": SMALL | {"model": DROPOUT}, "shares": (32, 32), "strategy": "independent"},
}


ALWAYS = "dropout, unequal"


@pytest.mark.parametrize(
    "name", [ALWAYS, *(pytest.param(name, marks=pytest.mark.slow) for name in PAIRS if name != ALWAYS)]
)
def test_two_ranks_continue_together(pair, name, tmp_path):
    asked = asked_of(PAIRS[name])
    if (
        asked.trial.layout.strategy == "ddp_unequal"
    ):  # each training by itself would find other shares: compare the second part
        first = both(pair, asked, tmp_path, 1)
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "checkpoint", copy / "checkpoint")
        whole, went_on = both(pair, asked, copy), both(pair, asked, tmp_path)
    else:
        whole, first = both(pair, asked, None), both(pair, asked, tmp_path, 1)
        went_on = both(pair, asked, tmp_path)
    assert all(answer["stopped"] for answer in first) and not any(answer["stopped"] for answer in went_on)
    for ours, theirs in zip(went_on, whole, strict=True):
        assert ours["weights"] == theirs["weights"]
        assert ours["told"] == theirs["told"]


def test_short_trial_saves_no_checkpoint(tmp_path, monkeypatch):
    kept: list[str] = []
    monkeypatch.setattr(Context, "checkpoint", lambda self, *state: kept.append(self.trial_id))
    asked = request(trial_dir=str(tmp_path))
    assert rank.run(asked, lambda row: None, lambda: False).status == "ok" and not kept
    assert rank.run(asked, lambda row: None, StopAfter(1)).status == "ok" and kept == ["trial"]


@pytest.mark.parametrize("stop", [lambda: True, lambda: False])
def test_checkpoints_off_writes_nothing(tmp_path, stop):
    settings = OFTEN | {"checkpoint": "off"}
    rank.run(request(trial_dir=str(tmp_path), config={"trainable": settings}), lambda row: None, stop)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_of_a_trial_is_plain(tmp_path):
    rank.run(request(trial_dir=str(tmp_path)), lambda row: None, StopAfter(1))
    [path] = (tmp_path / "checkpoint").iterdir()
    assert set(torch.load(path, weights_only=True)["state"]) == {
        *("replica", "progress", "layout", "batch", "laps", "mean_loss")
    }
