from dataclasses import replace

import pytest

from sweeps.rerun import Rerun, form_errors, rerun_errors
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
def test_a_word_points_at_no_trial(word):
    assert selected(word) == [] and Rerun.of(word).word == word


def test_a_trial_is_named_by_the_beginning_of_its_id_and_a_cell_by_its_own():
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
def test_trials_are_named_by_what_their_axes_say_and_what_follows_from_them(named, count):
    assert len(selected(named)) == len(selected([named])) == count
    assert len(selected([named, {"seed": [0, 1]}])) == len(TRIALS)


def test_what_names_no_trial_is_told_with_the_nearest_that_do():
    begun = ONE.trial_id[:6]
    other = begun[:5] + ("0" if begun[5] != "0" else "1")
    assert errors([other])[0].startswith(f"rerun: no planned trial or cell has an id that starts with {other!r}")
    assert f"did you mean {begun!r}" in errors([other])[0]
    assert errors({"gpu": 1})[0].startswith(
        "rerun names 'gpu', which is not an axis (did you mean 'gpus'?); axes: gpus,"
    )
    assert errors({"gpus": 3}) == ["rerun names gpus=3, which no planned trial has; there are: 1, 2"]
    told = "rerun: each of gpus=2, device_batch_size=16 occurs, but no trial has them together"
    assert errors([{"gpus": 2, "device_batch_size": 16}, {"gpus": 3}])[0] == told


def test_an_id_that_several_begin_with_is_no_name():
    alike = [replace(ONE, trial_id="ab12", cell_id="c0"), replace(ONE, trial_id="ab34", cell_id="abcd")]
    (told,) = rerun_errors(Rerun.of("ab"), alike)
    assert told == "rerun: 3 ids of trials and cells start with 'ab': ab12, ab34, abcd; give more digits"
    assert not list(rerun_errors(Rerun.of("abc"), alike)) and len(Rerun.of("abc").selected(alike)) == 1


@pytest.mark.parametrize("given", ["al", "3FA2", 12, None, [], {}, [["3fa2"]], [{}], 1.5, True, ""])
def test_what_can_be_no_name_is_told_once(given):
    (told,) = errors(given)
    assert told.startswith("rerun must be none, failed, all, or trials by the start of an id or by axes")
    assert ("did you mean 'all'" in told) == (given == "al")


def test_a_word_beside_ids_is_told_to_stand_by_itself():
    assert errors(["failed", "xyz"])[0] == "rerun: failed must stand alone, not in a list: rerun=failed"
    assert len(errors(["failed", "xyz"])) == 2
