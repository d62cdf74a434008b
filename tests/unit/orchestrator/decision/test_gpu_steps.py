import math

import pytest

from orchestrator.decision.recommendation import COSTLY, NOT_WORTH, UNDECIDED, WORTH
from orchestrator.store.record import TrialRecord
from tests.unit.orchestrator.decision.deciding import decided, measured, swayed
from tests.unit.orchestrator.records import record_of


def test_a_faster_number_of_gpus_is_worth_it_unless_it_loses_accuracy(records: list[TrialRecord]) -> None:
    second, four = decided(records).gpu_steps
    assert (second.name, second.fewer, second.gpus, second.worth) == ("2nd GPU", 1, 2, WORTH)
    assert (four.name, four.fewer, four.gpus, four.worth) == ("4 GPUs", 2, 4, NOT_WORTH)
    assert second.gain.value == pytest.approx(2) and math.isnan(four.gain.value)
    (speed,) = four.by_batch
    assert (speed.batch, speed.lo, speed.keeps_margin) == (32, pytest.approx(1.5), False)


def test_cost_and_interval_are_those_of_the_best_cells() -> None:
    (step,) = decided(swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.9})).gpu_steps
    assert step.worth == WORTH and step.cost == pytest.approx(2 / 1.9, rel=0.01)
    assert step.gain.lo < step.gain.value < step.gain.hi and step.gain.value == pytest.approx(1.9, rel=0.01)


def test_more_cost_than_gain_is_costly() -> None:
    """1.3 times the speed of two GPUs costs 1.54 times as much."""
    assert decided(swayed({1: 100, 2: 130}, {1: 0.9, 2: 0.9})).gpu_steps[0].worth == COSTLY
    assert decided(swayed({1: 100, 2: 150}, {1: 0.9, 2: 0.9})).gpu_steps[0].worth == WORTH


def test_an_equal_number_is_not_worth_it_and_a_noisy_one_is_undecided() -> None:
    assert decided(swayed({1: 100, 2: 90}, {1: 0.9, 2: 0.9})).gpu_steps[0].worth == NOT_WORTH
    assert decided(swayed({1: 100, 2: 103}, {1: 0.9, 2: 0.9})).gpu_steps[0].worth == UNDECIDED


def test_one_seed_tells_nothing() -> None:
    one = [record_of(gpus, 0, metrics=measured(100 * gpus, 0.9)) for gpus in (1, 2)]
    assert decided(one).gpu_steps[0].worth == UNDECIDED


def test_an_untimed_cell_that_seems_faster_leaves_the_step_open(records: list[TrialRecord]) -> None:
    hopeful = [record_of(4, s, lr_rule="lars", metrics=measured(900, 0.9) | {"foreign_cpu": 0.5}) for s in range(3)]
    assert decided([*records, *hopeful]).gpu_steps[1].worth == UNDECIDED


def test_one_number_of_gpus_has_no_steps() -> None:
    assert decided(swayed({1: 100}, {1: 0.9})).gpu_steps == ()
