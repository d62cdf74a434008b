"""Branches and their bases: which trials a sweep with branch points has."""

from dataclasses import replace
from typing import Any

import pytest

from sweeps.branch import BRANCH_TOKENS, base_of, point_of, with_bases
from sweeps.errors import ConfigError
from sweeps.sweep import Sweep, trials
from tests.unit.sweeps.setups import setup

AXES: dict[str, list[Any]] = {
    BRANCH_TOKENS: [1024, 2048],
    "global_batch_size": [32, 64],
    "lr_rule": ["none", "sqrt"],
    "lr_multiplier": [1.0, 2.0],
    "seed": [0, 1],
}


def setup_of(config_axes, **config):
    settings = {"branch_window_tokens": 1024, "branch_tokens": config_axes.get(BRANCH_TOKENS)}
    sections: dict[str, dict[str, Any]] = {
        "data": {"epoch_tokens": 1024},
        "model": {"sequence_length": 8},
        "budget": {"tokens": 4096},
    }
    sections |= {"trainable": settings, "schedule": {}}
    made = {key: section | config.get(key, {}) for key, section in sections.items()}
    return setup(config=made, identity={"config": config_axes})


def grown(axes, **config):
    def expanded(of):
        return trials(Sweep(name="s", axes=of), lambda point: setup_of(dict(point), **config))

    return with_bases(expanded(axes), lambda point: expanded({axis: [value] for axis, value in point.items()})[0])


def test_branches_of_a_seed_share_one_base():
    trials = grown(AXES)
    bases, branches = trials[:2], trials[2:]
    assert len(branches) == 2 * 2 * 2 * 2 * 2 and len({trial.trial_id for trial in trials}) == len(trials)
    for base in bases:
        assert point_of(base) is None and base_of(base) == "" and base.batch.global_batch_size == 32
        assert (base.lr.rule, base.lr.multiplier, base.lr.value) == ("none", 1.0, 0.1)
        assert base.config["trainable"]["branch_points"] == [1024, 2048]
        own = [trial for trial in branches if base_of(trial) == base.trial_id]
        assert len(own) == 16 and {trial.seed for trial in own} == {base.seed}


def test_a_further_point_changes_no_id():
    before, after = (
        {trial.trial_id for trial in grown(AXES | {BRANCH_TOKENS: points})} for points in ([1024], [1024, 2048])
    )
    assert before < after


def test_trials_without_branches_stay_as_they_are():
    plain = trials(Sweep(name="s", axes={"global_batch_size": [32], "seed": [0]}), lambda point: setup())
    assert with_bases(plain, lambda axes: pytest.fail("there is no base")) == plain


def test_a_trial_of_the_grid_may_be_the_base():
    trials = grown({BRANCH_TOKENS: [None, 1024], "global_batch_size": [32, 64], "seed": [0]})
    assert [point_of(trial) for trial in trials] == [None, None, 1024, 1024]
    assert {base_of(trial) for trial in trials[2:]} == {trials[0].trial_id}


@pytest.mark.parametrize(
    ("axes", "config", "named"),
    [
        ({}, {"trainable": {"branch_window_tokens": None}}, "branch_window_tokens"),
        ({}, {"trainable": {"branch_window_tokens": 1000}}, "1000"),
        ({BRANCH_TOKENS: [1000]}, {}, "1000"),
        ({BRANCH_TOKENS: [4096]}, {}, "4096"),
        ({}, {"data": {"epoch_tokens": None}}, "epoch_tokens"),
        ({}, {"budget": {"tokens": None}}, "budget.tokens"),
        ({}, {"schedule": {"name": "increase_batch"}}, "increase_batch"),
        ({"global_batch_size": [32, 48]}, {}, "48"),
        ({"global_batch_size": [64, 128]}, {}, "32"),
        ({"lr_rule": ["lars"]}, {}, "lars"),
        ({"lr_rule": ["adascale"]}, {}, "adascale"),
    ],
)
def test_branches_that_cannot_be_compared_are_refused(axes, config, named):
    with pytest.raises(ConfigError) as raised:
        grown(AXES | axes, **config)
    assert any(named in error for error in raised.value.errors)


def test_a_fixed_point_and_a_batch_by_device_are_refused():
    of_device = trials(
        Sweep(name="s", axes={"device_batch_size": [32], BRANCH_TOKENS: [1024]}), lambda point: setup_of(dict(point))
    )
    fixed = [replace(trial, axes={"global_batch_size": 32}) for trial in of_device]
    for wrong, named in ((of_device, "device_batch_size"), (fixed, "axis")):
        with pytest.raises(ConfigError) as raised:
            with_bases(wrong, lambda axes: pytest.fail("it is refused before"))
        assert any(named in error for error in raised.value.errors)
