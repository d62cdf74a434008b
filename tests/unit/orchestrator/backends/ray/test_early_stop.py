from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.backends.ray.early_stop import EarlyStop
from orchestrator.config.settings import SweepSection
from tests.contract.trials import beyond_reference, request, trial

RULE = request(sweep=SweepSection(early_stop="asha", early_stop_after=0.25))


def of_tune(name, budget, **changes):
    return SimpleNamespace(trial_id=name, spec=replace(beyond_reference(trial(name, "", budget=budget)), **changes))


def judged(early_stop, climber, accuracies):
    """Return after each epoch of a hundred samples whether to stop the trial."""
    rows = [{"epoch": n, "samples": 100 * n, "val_accuracy": accuracy} for n, accuracy in enumerate(accuracies, 1)]
    return [bool(early_stop.reason_to_stop(climber, [row])) for row in rows]


@pytest.mark.parametrize("budget", [{"epochs": 8}, {"samples": 800}, {"steps": 100}])
def test_trial_far_behind_is_stopped_at_a_rung(budget):
    early_stop = EarlyStop(RULE, lambda trial: True)
    assert not any(judged(early_stop, of_tune("good", budget), [0.5, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]))
    assert not any(judged(early_stop, of_tune("close", budget), [0.1, 0.78, 0.88, 0.88, 0.9, 0.9, 0.9, 0.9]))
    # The rungs are at two and four epochs; in between nobody is looked at.
    assert judged(early_stop, of_tune("late", budget), [0.1, 0.8, 0.1, 0.8])[:4] == [False, False, False, True]
    said = early_stop.reason_to_stop(of_tune("bad", budget), [{"epoch": 2, "samples": 200, "val_accuracy": 0.1}])
    assert all(part in said for part in ("sweep.early_stop", "0.1000", "200", "0.8000"))


def test_trials_that_a_table_needs_are_never_stopped():
    good, worse = [0.9] * 8, [0.1] * 8
    early_stop = EarlyStop(RULE, lambda trial: trial.trial_id != "untimed")
    judged(early_stop, of_tune("good", {"epochs": 8}), good)
    assert any(judged(early_stop, of_tune("bad", {"epochs": 8}), worse))
    at_reference = replace(trial("x", "").lr, reference_batch_size=8)
    for needed in (
        of_tune("reference", {"epochs": 8}, lr=at_reference),
        of_tune("untimed", {"epochs": 8}),
        of_tune("other speed", {"epochs": 8}, axes={"gpus": 2}),
        of_tune("probe", {"epochs": 8}, measures="another"),
        of_tune("seconds", {"seconds": 8}),
    ):
        assert not any(judged(early_stop, needed, worse))


@pytest.mark.parametrize("budget", [{"epochs": 7}, {"samples": 700}])
def test_finished_training_is_not_stopped_even_when_repeated(budget):
    good, worse = [0.9] * 7, [0.1] * 7
    early_stop = EarlyStop(RULE, lambda trial: True)
    judged(early_stop, of_tune("good", budget), good)
    rows = [{"epoch": n, "samples": 100 * n, "val_accuracy": 0.1} for n in range(1, 8)]
    assert not early_stop.reason_to_stop(of_tune("heard of late", budget), rows)
    assert not any(judged(early_stop, of_tune("heard of late", budget), worse))
    assert any(judged(early_stop, of_tune("bad", budget), worse))
