import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.lr_rule import RULES, SAME_AT_REFERENCE, learning_rate, plainness
from tests.unit.sweeps.setups import setup

ADAM = {"name": "adam", "betas": [0.9, 0.999], "eps": 1e-8}
ADAMW = {"name": "adamw", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
SGD = {"name": "sgd", "momentum": 0.9}
FITS = dict.fromkeys(("none", "linear", "sqrt", "adascale", "lars"), SGD) | {"adam_tokens": ADAMW}
"""{rule: an optimizer that it is for; of others: ADAM}"""


def rate(rule, batch, optimizer=SGD, reference=0.1, multiplier=1.0, reference_batch=128):
    asked = setup(reference_lr=reference, reference_batch_size=reference_batch, warmup_epochs=5, optimizer=optimizer)
    return learning_rate(rule, multiplier, batch, asked)


@pytest.mark.parametrize(
    ("rule", "optimizer", "value", "warmup_from", "warmup_epochs"),
    [
        ("none", SGD, 0.1, 0.1, 0),
        ("linear", SGD, 0.8, 0.1, 5),
        ("sqrt", SGD, 0.1 * 2.8284271247461903, 0.1 * 2.8284271247461903, 0),
        ("adascale", SGD, 0.1, 0.1, 0),
        ("lars", SGD, 0.8, 0.1, 5),
        ("lamb", ADAM, 0.1 * 2.8284271247461903, 0.1, 5),
    ],
)
def test_rules_at_eight_times_the_reference_batch(rule, optimizer, value, warmup_from, warmup_epochs):
    scaled = rate(rule, 1024, optimizer)
    assert scaled.value == pytest.approx(value, rel=1e-12)
    assert scaled.warmup_from == pytest.approx(warmup_from, rel=1e-12)
    assert scaled.warmup_epochs == warmup_epochs


def test_adam_sqrt_by_hand():
    scaled = rate("adam_sqrt", 512, ADAM, reference=1e-3)
    assert scaled.value == pytest.approx(2e-3, rel=1e-12)
    assert scaled.optimizer["betas"] == pytest.approx([0.6, 0.996], rel=1e-12)
    assert scaled.optimizer["eps"] == pytest.approx(5e-9, rel=1e-12)


def test_adam_tokens_by_hand():
    """At κ = 4 the mean square forgets half after as many samples, and weights decay four times as fast."""
    scaled = rate("adam_tokens", 512, ADAMW, reference=1e-3)
    assert scaled.value == scaled.warmup_from == 1e-3
    assert scaled.optimizer["betas"] == pytest.approx([0.9, 0.95**4], rel=1e-12)
    assert scaled.optimizer["weight_decay"] == pytest.approx(0.4, rel=1e-12)
    assert math.log(0.5, scaled.optimizer["betas"][1]) * 512 == pytest.approx(math.log(0.5, 0.95) * 128)


@pytest.mark.parametrize(
    ("rule", "batch", "optimizer", "message"),
    [
        ("adam_sqrt", 1280, ADAM, "κ·"),
        *(("adam_sqrt", 256, ADAM | {missing: None}, "betas and eps") for missing in ("betas", "eps")),
        ("adam_tokens", 512, ADAMW | {"weight_decay": 60.0}, "κ=4 it is 2.4"),
        ("adam_tokens", 512, ADAMW | {"betas": None}, "betas and weight_decay"),
    ],
)
def test_adam_rules_are_refused_where_they_have_no_meaning(rule, batch, optimizer, message):
    with pytest.raises(ValueError, match=message):
        given = {key: value for key, value in optimizer.items() if value is not None}
        rate(rule, batch, given, reference=0.01)
    assert rate("adam_sqrt", 1279, ADAM).optimizer["betas"][0] == pytest.approx(1 / 1280)


@pytest.mark.parametrize(
    ("rule", "optimizer"),
    [
        ("adam_tokens", "adam"),
        ("adam_sqrt", "sgd"),
        ("linear", "adam"),
        ("lars", "adamw"),
        ("lamb", "sgd"),
        ("sqrt", "adadelta"),
        ("adascale", "adam"),
    ],
)
def test_a_rule_refuses_unfit_optimizers(rule, optimizer):
    with pytest.raises(ValueError, match=f"lr_rule={rule} .*{optimizer}"):
        rate(rule, 256, {**ADAM, "name": optimizer})


@pytest.mark.parametrize(("rule", "times"), [("linear", 2.0), ("sqrt", 2**0.5)])
def test_user_optimizers_may_use_linear_and_sqrt(rule, times):
    own = {"name": "mypackage.optim:Mine"}
    assert rate(rule, 256, own).value == pytest.approx(0.1 * times)
    with pytest.raises(ValueError, match="lr_rule=lars is not for"):
        rate("lars", 256, own)


def test_an_unknown_rule_suggests_the_nearest():
    with pytest.raises(ValueError, match="'linear'"):
        rate("linaer", 256)


def test_no_warm_up_below_the_reference_batch():
    scaled = rate("linear", 64)
    assert scaled.warmup_from == scaled.value == pytest.approx(0.05)


@given(st.sampled_from(sorted(RULES)), st.floats(0.01, 100), st.sampled_from([32, 128, 256]))
def test_the_multiplier_scales_the_whole_rate(rule, multiplier, batch):
    optimizer = FITS.get(rule, ADAM)
    one, many = rate(rule, batch, optimizer), rate(rule, batch, optimizer, multiplier=multiplier)
    assert math.isclose(many.value, one.value * multiplier) and math.isclose(
        many.warmup_from, one.warmup_from * multiplier
    )


@given(st.sampled_from(sorted(RULES)))
def test_every_rule_keeps_the_rate_at_the_reference_batch(rule):
    optimizer = FITS.get(rule, ADAM)
    scaled = rate(rule, 128, optimizer)
    assert scaled.value == pytest.approx(0.1) and scaled.warmup_from == pytest.approx(0.1)


def test_rules_same_at_reference_change_nothing_there():
    plain = {rule: FITS.get(rule, ADAM) for rule in RULES}

    def changes(rule, optimizer):
        changed = rate(rule, 128, optimizer).optimizer
        return RULES[rule].in_training or any(optimizer[key] != pytest.approx(value) for key, value in changed.items())

    unchanged = {rule for rule, optimizer in plain.items() if not changes(rule, optimizer)}
    assert unchanged == SAME_AT_REFERENCE


def test_the_plainest_reference_is_nearest_to_the_plain_rate():
    asked = [("linear", 1.0), ("none", 4.0), ("linear", 2.0), ("none", 1.0), ("none", 0.5)]
    in_order = [("none", 1.0), ("none", 0.5), ("none", 4.0), ("linear", 1.0), ("linear", 2.0)]
    assert sorted(asked, key=lambda reference: plainness(*reference)) == in_order
