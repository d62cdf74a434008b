from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.identity import ID_DIGITS, axes_without_effect, digest, equivalent_cells, without
from sweeps.layout import Layout
from tests.unit.sweeps.setups import expanded, setup

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, min_size=2, max_size=5))
def test_the_order_of_keys_does_not_matter(value):
    assert digest(value) == digest(dict(reversed(value.items())))


@given(JSON)
def test_a_digest_is_short_and_hexadecimal(value):
    assert len(digest(value)) == ID_DIGITS and int(digest(value), 16) >= 0


def test_int_and_whole_float_have_one_digest():
    assert digest({"lr_multiplier": 1}) == digest({"lr_multiplier": 1.0})
    assert digest({"a": (1, 2)}) == digest({"a": [1, 2]})


def test_different_values_have_different_digests():
    different = [True, 1, "1", None, [1], {"1": 1}, 1.5, {}, []]
    assert len({digest(value) for value in different}) == len(different)
    with pytest.raises(ValueError, match="JSON compliant"):
        digest(float("nan"))


def test_without_removes_keys_from_a_copy():
    config = {"data": {"name": "cifar10", "root": "/somewhere"}, "model": {"name": "cnn"}}
    assert without(config, ["data.root", "data.absent", "nowhere.at.all"]) == {
        "data": {"name": "cifar10"},
        "model": {"name": "cnn"},
    }
    assert config["data"]["root"] == "/somewhere"


def named_equivalents(trials):
    names = {trial.cell_id: (trial.batch.global_batch_size, trial.lr.rule, trial.lr.multiplier) for trial in trials}
    return {names[cell]: names[other] for cell, other in equivalent_cells(trials).items()}


@pytest.mark.parametrize(
    ("batches", "rules", "multipliers", "equals"),
    [
        ([32, 128], ["none", "linear", "sqrt"], [1], {(32, rule, 1): (32, "none", 1) for rule in ("linear", "sqrt")}),
        ([128], ["none", "sqrt", "linear"], [1, 2], {(128, "sqrt", 1): (128, "none", 2)}),  # linear warms up
        ([32], ["none", "adascale"], [1], {}),
    ],
)
def test_cells_with_the_same_rate_are_equivalent(batches, rules, multipliers, equals):
    axes = {"device_batch_size": batches, "lr_rule": rules, "lr_multiplier": multipliers, "seed": [0, 1]}
    trials = expanded(axes, setup(optimizer={"name": "sgd", "momentum": 0.9}))
    assert named_equivalents(trials) == equals


@pytest.mark.parametrize(
    "change", [{"layout": Layout(strategy="other")}, {"config": {"model": {}}}, {"timing": "shared"}]
)
def test_any_other_difference_prevents_equivalence(change):
    one, other = expanded({"device_batch_size": [32], "lr_rule": ["none", "sqrt"]})
    assert equivalent_cells([one, other]) and not equivalent_cells([one, replace(other, **change)])


@pytest.mark.parametrize(
    ("strategy", "shards", "equals"),
    [("fsdp", 1, True), ("fsdp_grad", 1, True), ("single", 1, True), ("independent", 1, False), ("fsdp", 2, False)],
)
def test_layouts_of_one_device_train_alike_in_the_own_loop(strategy, shards, equals):
    [one] = expanded({"device_batch_size": [32]})
    one = replace(one, layout=Layout(strategy="ddp"))
    other = replace(one, cell_id="other", layout=Layout(strategy=strategy, shards=shards))
    assert bool(equivalent_cells([one, other])) == equals
    own_code = [replace(trial, trainable="mine.training:train") for trial in (one, other)]
    assert not equivalent_cells(own_code)


@pytest.mark.parametrize("trainable", ["trainables.command.training:train", "mine.training:train"])
def test_user_code_may_implement_a_rule_by_its_name(trainable):
    one, other = expanded({"device_batch_size": [32], "lr_rule": ["none", "sqrt"]})
    assert not equivalent_cells([replace(trial, trainable=trainable) for trial in (one, other)])


@pytest.mark.parametrize(
    ("axes", "without_effect"),
    [
        ({"gpus": [1], "device_batch_size": [32, 64], "data.width": [1, 2]}, ["data.width"]),  # no rank receives it
        ({"gpus": [1, 2], "device_batch_size": [32, 64]}, []),
    ],
)
def test_axis_that_no_rank_receives_is_without_effect(axes, without_effect):
    assert axes_without_effect(expanded(axes), axes) == without_effect
