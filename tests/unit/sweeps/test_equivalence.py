from dataclasses import replace

import pytest

from sweeps.equivalence import equivalent_cells
from tests.unit.sweeps.setups import expanded, setup


def told(trials):
    names = {each.cell_id: (each.batch.global_batch_size, each.lr.rule, each.lr.multiplier) for each in trials}
    return {names[cell]: names[other] for cell, other in equivalent_cells(trials).items()}


def test_rules_are_one_at_the_reference_batch_and_several_beyond():
    found = expanded({"device_batch_size": [32, 128], "lr_rule": ["none", "linear", "sqrt"], "seed": [0, 1]})
    assert told(found) == {(32, "linear", 1): (32, "none", 1), (32, "sqrt", 1): (32, "none", 1)}


def test_a_multiplier_can_come_to_what_a_rule_does():
    found = expanded({"device_batch_size": [128], "lr_rule": ["none", "sqrt", "linear"], "lr_multiplier": [1, 2]})
    assert told(found) == {(128, "sqrt", 1): (128, "none", 2)}  # linear warms up


def test_a_rule_that_the_training_itself_follows_has_no_twin():
    given = setup(optimizer={"name": "sgd", "momentum": 0.9})
    assert told(expanded({"device_batch_size": [32], "lr_rule": ["none", "adascale"]}, given)) == {}


@pytest.mark.parametrize("change", [{"strategy": "other"}, {"config": {"model": {}}}, {"timing": "shared"}])
def test_whatever_else_differs_makes_another_training(change):
    one, other = expanded({"device_batch_size": [32], "lr_rule": ["none", "sqrt"]})
    assert equivalent_cells([one, other]) and not equivalent_cells([one, replace(other, **change)])


@pytest.mark.parametrize("trainable", ["trainables.command.training:train", "mine.training:train"])
def test_a_training_of_the_users_own_may_follow_the_rules_name(trainable):
    one, other = expanded({"device_batch_size": [32], "lr_rule": ["none", "sqrt"]})
    assert not equivalent_cells([replace(each, trainable=trainable) for each in (one, other)])
