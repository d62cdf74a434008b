import json
import math

import pytest

import sweeps.sweep
from orchestrator.scheduling.order import in_order
from sweeps.mistakes import MistakesError
from sweeps.sweep import Sweep, trials
from tests.unit.sweeps.setups import GRID, expanded, setup


def test_a_trial_of_the_grid():
    trial = expanded(GRID)[-2]
    assert (trial.gpus, trial.gang.ranks, trial.batch.global_batch_size, trial.batch.shares) == (2, 2, 128, (64, 64))
    assert (trial.lr.value, trial.lr.warmup_from, trial.strategy) == (0.4, 0.1, "ddp")
    assert trial.label == "s/gpus=2,device_batch_size=64,lr_rule=linear,seed=0"
    assert json.loads(json.dumps(trial.rank_request(1)))["batch"]["shares"] == [64, 64]


def test_a_sweeps_trials_are_the_points_that_zip_and_exclude_leave():
    axes = {"gpus": [1, 2, 4], "global_batch_size": [32, 64, 128], "seed": [0, 1]}
    found = expanded(axes, zip=[["gpus", "global_batch_size"]], exclude=[{"gpus": 2, "seed": 1}])
    told = [(trial.gpus, trial.batch.global_batch_size, trial.seed) for trial in found]
    assert told == [(1, 32, 0), (1, 32, 1), (2, 64, 0), (4, 128, 0), (4, 128, 1)]


@pytest.mark.parametrize("zipped", [(), [["seed", "device_batch_size"]]])
def test_a_sweep_may_be_as_large_as_its_limit_and_no_larger(zipped, monkeypatch):
    monkeypatch.setattr(sweeps.sweep, "MOST_TRIALS", 4)
    sides = {"device_batch_size": [32, 64, 96, 128]} if zipped else {"device_batch_size": [32]}
    assert len(expanded({"seed": [0, 1, 2, 3], **sides}, zip=zipped)) == 4
    with pytest.raises(MistakesError, match="8 combinations"):
        expanded({"seed": [0, 1, 2, 3], "gpus": [1, 2], **sides}, zip=zipped)


def test_trials_that_differ_only_by_seed_are_a_cell():
    found = expanded(GRID)
    assert len({trial.trial_id for trial in found}) == 16 and len({trial.cell_id for trial in found}) == 8
    one = found[0]
    assert [trial.seed for trial in found if trial.cell_id == one.cell_id] == [0, 1]


def test_none_and_sqrt_at_the_reference_batch_are_two_trials():
    none, sqrt = expanded({"device_batch_size": [32], "lr_rule": ["none", "sqrt"]})
    assert none.lr.value == sqrt.lr.value and none.trial_id != sqrt.trial_id


def test_identity_is_what_was_asked_for_and_nothing_else():
    axes = {"device_batch_size": [32]}
    (one,) = expanded(axes)
    (renamed,) = trials(Sweep(name="other", axes=axes), lambda axes: setup(cpus_per_worker=2, device="cuda"))
    (longer,) = expanded(axes, setup(identity={"config": "other"}))
    (spelled_out,) = expanded({**axes, "seed": [0], "gpus": [1.0], "lr_multiplier": [1]})
    assert one.trial_id == renamed.trial_id == spelled_out.trial_id != longer.trial_id


def test_widening_an_axis_keeps_the_trials_there_were():
    narrow = {trial.trial_id for trial in expanded(GRID)}
    wide = {trial.trial_id for trial in expanded({**GRID, "seed": [0, 1, 2], "device_batch_size": [16, 32, 64]})}
    assert narrow < wide and len(wide) == 36


def test_a_rule_that_changes_the_optimizer_changes_the_trainables_config():
    (trial,) = expanded({"device_batch_size": [64], "lr_rule": ["lars"]})
    assert trial.config["optimizer"] == {"name": "lars"} and trial.config["model"] == {"name": "cnn"}


def test_a_setup_that_cannot_be_is_looked_at_once_and_the_others_too():
    asked = []

    def setup_of(axes):
        asked.append(axes["model"])
        if axes["model"] != "c":
            raise MistakesError([f"no {axes['model']}"])
        return setup()

    with pytest.raises(MistakesError) as error:
        trials(Sweep(name="s", axes={**GRID, "model": ["a", "b", "c"], "lr_multiplier": [1, -1]}), setup_of)
    assert asked == ["a", "b", "c"]
    assert [told.partition(",")[0] for told in error.value.mistakes] == [
        "no a",
        "no b",
        "lr_multiplier must be a number above 0",
    ]


def test_the_setup_is_asked_for_once_for_each_combination_of_config_axes():
    asked = []

    def setup_of(axes):
        asked.append(axes)
        return setup(identity=axes)

    found = trials(Sweep(name="s", axes={**GRID, "budget.epochs": [1, 2], "model": ["a", "b"]}), setup_of)
    assert len(found) == 64 == len({trial.trial_id for trial in found}) and len(asked) == 4


def test_everything_that_is_wrong_is_told_at_once():
    axes = {
        "gpus": [0, 2],
        "device_batch_size": [0, 32, 32],
        "lr_rule": ["linaer", "adam_sqrt"],
        "lr_multiplier": [-1],
        "seed": ["x"],
    }
    with pytest.raises(MistakesError) as caught:
        expanded(axes, setup(reference_lr=-0.1))
    assert list(caught.value.mistakes) == [
        "sweep.axes.device_batch_size has 32 more than once",
        "lr_multiplier must be a number above 0, not -1",
        "trainable.lr must be a number above 0, not -0.1",
        "seed must be a whole number of at least 0, not 'x'",
        "gpus must be a number above 0, not 0",
        "device_batch_size must be a whole number of at least 1, not 0",
        "unknown lr_rule 'linaer' (did you mean 'linear'?); valid: none, linear, sqrt, adam_sqrt, lars, lamb, adascale",
        "lr_rule=adam_sqrt is for the optimizers adam, adamw, not for sgd,"
        " which can use: none, linear, sqrt, lars, adascale",
    ]


@pytest.mark.parametrize(
    ("axes", "found", "told"),
    [
        ({"lr_multiplier": [0]}, {}, "lr_multiplier must be a number above 0, not 0"),
        ({}, {"reference_lr": 0}, "trainable.lr must be a number above 0, not 0"),
        ({}, {"reference_batch_size": 0}, "reference_batch_size must be a whole number of at least 1, not 0"),
        ({"seed": [-1]}, {}, "seed must be a whole number of at least 0, not -1"),
    ],
)
def test_what_is_just_outside_its_range_is_told_with_what_is_wrong_besides(axes, found, told):
    with pytest.raises(MistakesError) as caught:
        expanded({"gpus": [2], "global_batch_size": [33], **axes}, setup(**found))
    first, besides = caught.value.mistakes
    assert first == told and besides.startswith("global_batch_size=33 is not divisible by 2 ranks")


def test_a_reference_batch_may_be_one_sample():
    (trial,) = expanded({"device_batch_size": [4], "lr_rule": ["linear"]}, setup(reference_batch_size=1))
    assert trial.lr.value == pytest.approx(0.4)


def test_a_setup_that_raises_a_value_error_is_a_mistake_and_no_trial_less():
    def setup_of(axes):
        raise ValueError("there is no such data")

    with pytest.raises(MistakesError) as caught:
        trials(Sweep(name="s", axes=GRID), setup_of)
    assert caught.value.mistakes == ("there is no such data",)


def test_mistakes_in_an_axis_hide_none_of_its_other_values():
    axes = {"gpus": [], "device_batch_size": [32, math.inf, 0], "seed": [0, 0]}
    with pytest.raises(MistakesError) as caught:
        expanded(axes)
    assert caught.value.mistakes == (
        "sweep.axes.gpus has no values",
        "sweep.axes.device_batch_size has inf, which is not a finite number",
        "sweep.axes.seed has 0 more than once",
        "device_batch_size must be a whole number of at least 1, not 0",
    )


def test_both_sides_of_the_batch_must_agree():
    axes = {"gpus": [2], "device_batch_size": [32], "global_batch_size": [64]}
    assert expanded(axes)[0].batch.global_batch_size == 64
    with pytest.raises(MistakesError, match="is 64, not global_batch_size=32"):
        expanded({**axes, "global_batch_size": [32]})


def test_one_process_with_several_gpus_takes_a_device_batch_for_each():
    held = setup(strategy="data_parallel", device="cuda")
    (trial,) = expanded({"gpus": [4], "device_batch_size": [32]}, held)
    assert (trial.gang.ranks, trial.batch.shares, trial.batch.global_batch_size) == (1, (128,), 128)
    assert (trial.batch.device_batch_size, trial.rank_request(0)["gpus_per_rank"]) == (32, 4)


def test_shares_that_follow_speed_need_no_batch_that_divides():
    (trial,) = expanded({"gpus": [2], "global_batch_size": [33]}, setup(strategy="ddp_unequal"))
    assert (trial.strategy, trial.batch.shares) == ("ddp_unequal", (17, 16))


def test_one_side_of_the_batch_must_be_given():
    with pytest.raises(MistakesError, match="give one side of the batch"):
        expanded({"gpus": [1]})


def test_seed_by_seed_and_shape_by_shape_turning_at_every_seed():
    ordered = in_order(expanded(GRID))
    assert [(trial.seed, trial.gpus) for trial in ordered] == (
        [(0, 2)] * 4 + [(0, 1)] * 4 + [(1, 1)] * 4 + [(1, 2)] * 4
    )


def test_independent_models_have_the_rate_of_their_own_batch():
    (trial,) = expanded({"gpus": [4], "device_batch_size": [64], "lr_rule": ["linear"]}, setup(strategy="independent"))
    assert (trial.strategy, trial.gang.ranks, trial.batch.global_batch_size) == ("independent", 4, 256)
    assert trial.lr.value == 0.2


def test_a_grid_too_large_to_be_meant_is_a_mistake_and_not_expanded() -> None:
    axes = {"gpus": [1, 2], "device_batch_size": [32], "seed": range(60_000)}
    with pytest.raises(MistakesError) as caught:
        trials(Sweep(name="s", axes=axes), lambda point: pytest.fail("nothing is to be expanded"))
    assert caught.value.mistakes == (
        "120,000 combinations (2 gpus × 60,000 seed) are more than the 100,000 trials that a sweep may have",
    )
