import math

import pytest

from orchestrator.config.request import Terms
from orchestrator.decision.candidates import Contenders
from orchestrator.decision.recommendation import COSTLY, NOT_WORTH, UNDECIDED, WORTH
from orchestrator.decision.same_batch import factors_of_speedup
from tests.unit.orchestrator.decision.deciding import AXES, decided, measured, swayed
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of


def test_a_faster_number_of_gpus_is_worth_it_unless_it_loses_accuracy(records):
    second, four = decided(records).gpu_steps
    assert (second.name, second.fewer, second.gpus, second.worth) == ("2nd GPU", 1, 2, WORTH)
    assert (four.name, four.fewer, four.gpus, four.worth) == ("4 GPUs", 2, 4, NOT_WORTH)
    assert second.cell.gain.value == pytest.approx(2) and four.cell is None
    (speed,) = four.by_batch
    assert (speed.batch, speed.lo, speed.keeps_margin) == (32, pytest.approx(1.5), False)


def test_cost_and_interval_are_those_of_the_best_cells():
    (step,) = decided(swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.9})).gpu_steps
    assert step.worth == WORTH and step.if_held is None
    gain = step.cell.gain
    assert step.cell.cost == pytest.approx(2 / 1.9, rel=0.01) and step.cell.worth == WORTH
    assert gain.lo < gain.value < gain.hi and gain.value == pytest.approx(1.9, rel=0.01)


def test_a_gain_is_over_the_best_cell_with_fewer_gpus():
    # Four GPUs are no faster than two, so that eight are compared with two.
    speeds = {1: 100, 2: 190, 4: 180, 8: 400}
    records = [
        record_of(gpus, seed, metrics=measured(rate * (1 + sway), 0.9 + sway / 10))
        for gpus, rate in speeds.items()
        for seed, sway in enumerate((0, 0.01, -0.01))
    ]
    step = decided(records).gpu_steps[-1]
    assert (step.gpus, step.fewer, step.best_fewer) == (8, 4, 2)
    assert step.cell.gain.value == pytest.approx(400 / 190, rel=0.01)
    assert step.cell.cost == pytest.approx(8 / 2 * 190 / 400, rel=0.01)


@pytest.mark.parametrize(
    ("speed", "worth"),
    [(150, WORTH), (130, COSTLY), (90, NOT_WORTH), (103, UNDECIDED)],  # of two GPUs; speeds vary by 3%
)
def test_a_step_is_worth_it_if_its_gain_exceeds_its_cost(speed, worth):
    (step,) = decided(swayed({1: 100, 2: speed}, {1: 0.9, 2: 0.9})).gpu_steps
    assert step.worth == worth


def test_an_untimed_cell_that_seems_faster_leaves_the_step_open(records):
    hopeful = [record_of(4, s, lr_rule="lars", metrics=measured(900, 0.9) | {"foreign_cpu": 0.5}) for s in range(3)]
    assert decided([*records, *hopeful]).gpu_steps[1].worth == UNDECIDED


@pytest.mark.parametrize(
    ("gpus", "batch", "rule", "factors"),
    [
        (1, 32, "none", (1, 1)),
        (2, 32, "none", (1.9, 1)),
        (2, 32, "sqrt", (1.95, 1)),  # what another rule has at the same batch is chance, and the GPUs have all of it
        (1, 128, "none", (1, 2)),
        (2, 128, "none", (1.8, 2)),
        (2, 128, "sqrt", (1.8, 2)),  # 1×128 sqrt is missing, so that the other rule's cell tells
        (2, 512, "none", (math.nan, math.nan)),
    ],
)
def test_a_speed_up_is_divided_into_gpus_and_batch(gpus, batch, rule, factors):
    speeds = {
        (1, 32, "none"): 100,
        (2, 32, "none"): 190,
        (2, 32, "sqrt"): 195,
        (1, 128, "none"): 200,
        (2, 128, "none"): 360,
        (2, 128, "sqrt"): 360,
        (2, 512, "none"): 500,
    }
    records = [
        record_of(g, seed, batch=b, lr_rule=r, metrics=measured(rate, 0.9))
        for (g, b, r), rate in speeds.items()
        for seed in range(3)
    ]
    frames = collect(records, scaling="weak", reference_batch_size=32)
    contenders = Contenders.of(*frames, Terms(axes=AXES))
    (row,) = contenders.cells.index[contenders.cells["cell_id"] == f"{gpus}-{batch}-{rule}"]
    row_factors = [factor[row] for factor in factors_of_speedup(contenders)]
    assert row_factors == pytest.approx(factors, nan_ok=True)
    speedup = contenders.totals["time"].means()[contenders.baseline] / contenders.totals["time"].means()[row]
    assert math.isnan(factors[0]) or math.prod(row_factors) == pytest.approx(speedup)
