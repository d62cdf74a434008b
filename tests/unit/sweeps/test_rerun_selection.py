from dataclasses import replace

import pytest

from sweeps.rerun_selection import Rerun, form_errors, rerun_errors
from sweeps.sweep import Sweep, trials
from tests.unit.sweeps.setups import setup

AXES = {"gpus": [1, 2], "device_batch_size": [8, 16], "seed": [0, 1]}
TRIALS = trials(Sweep(name="s", axes=AXES, exclude=[{"gpus": 2, "device_batch_size": 16}]), lambda axes: setup())
ONE = TRIALS[0]


def selected(given):
    assert not list(form_errors(given)) and not list(rerun_errors(Rerun.of(given), TRIALS))
    named = Rerun.of(given).selected(TRIALS)
    return [trial for trial in TRIALS if trial.trial_id in named]


def errors(given):
    return [*form_errors(given), *rerun_errors(Rerun.of(given), TRIALS)]


@pytest.mark.parametrize("word", ["none", "failed", "all"])
def test_a_word_selects_no_trial(word):
    assert selected(word) == [] and Rerun.of(word).word == word


def test_id_prefixes_select_trials_and_cells():
    assert selected(ONE.trial_id[:8]) == selected([ONE.trial_id]) == [ONE]
    assert selected([ONE.cell_id[:8]]) == [trial for trial in TRIALS if trial.cell_id == ONE.cell_id]
    assert Rerun.of([ONE.trial_id]).word == "none"


@pytest.mark.parametrize(
    ("named", "count"),
    [
        ({"gpus": 2}, 2),
        ({"seed": 1}, 3),
        ({"device_batch_size": [8, 16], "seed": 0}, 3),
        ({"global_batch_size": 16}, 4),  # which follows from 16 on one and from 8 on two
        ({"lr_rule": "none", "gpus": 1, "seed": 0}, 2),
    ],
)
def test_axes_and_derived_values_select_trials(named, count):
    assert len(selected(named)) == len(selected([named])) == count
    assert len(selected([named, {"seed": [0, 1]}])) == len(TRIALS)


def test_names_without_a_trial_suggest_the_nearest():
    prefix = ONE.trial_id[:6]
    other = prefix[:5] + ("0" if prefix[5] != "0" else "1")
    assert repr(other) in errors([other])[0] and repr(prefix) in errors([other])[0]
    assert "'gpu'" in errors({"gpu": 1})[0] and "'gpus'" in errors({"gpu": 1})[0]
    (error,) = errors({"gpus": 3})
    assert "gpus=3" in error and "1, 2" in error
    assert "gpus=2, device_batch_size=16" in errors([{"gpus": 2, "device_batch_size": 16}, {"gpus": 3}])[0]


def test_an_ambiguous_prefix_is_an_error():
    alike = [replace(ONE, trial_id="ab12", cell_id="c0"), replace(ONE, trial_id="ab34", cell_id="abcd")]
    (error,) = rerun_errors(Rerun.of("ab"), alike)
    assert "'ab'" in error and "ab12, ab34, abcd" in error
    assert not list(rerun_errors(Rerun.of("abc"), alike)) and len(Rerun.of("abc").selected(alike)) == 1


def test_disturbed_trials_are_for_another_mode():
    (error,) = form_errors("disturbed")
    assert error.endswith("write mode=settle")


@pytest.mark.parametrize(
    ("label", "axes"),
    [
        ("2x32", "{gpus: 2, device_batch_size: 32}"),
        ("2×32 sqrt", "{gpus: 2, device_batch_size: 32, lr_rule: sqrt}"),
        ("2×32 sqrt seed=0", "{gpus: 2, device_batch_size: 32, lr_rule: sqrt, seed: 0}"),
        ("2×32 lr_multiplier=2", "{gpus: 2, device_batch_size: 32, lr_multiplier: 2}"),
    ],
)
def test_the_label_of_a_cell_has_its_axes_suggested(label, axes):
    (error,) = form_errors(label)
    assert error.endswith(f"write 'rerun={axes}'")


@pytest.mark.parametrize("given", ["al", "3FA2", 12, None, [], {}, [["3fa2"]], [{}], 1.5, True, ""])
def test_an_invalid_value_is_one_error(given):
    (error,) = errors(given)
    wrong = given[0] if isinstance(given, list) and given else given
    assert error.startswith("rerun must be") and repr(wrong) in error
    assert ("'all'" in error) == (given == "al")


def test_a_word_in_a_list_is_an_error():
    word, other = errors(["failed", "xyz"])
    assert "rerun=failed" in word and "'xyz'" in other
