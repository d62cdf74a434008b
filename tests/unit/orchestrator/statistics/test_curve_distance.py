import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.curves import loss_curves
from orchestrator.analysis.trials import collect
from orchestrator.statistics.curve_distance import (
    FEWEST,
    Curve,
    between_cells,
    between_seeds,
    distance,
    distances,
    pseudo_values,
)
from orchestrator.tables.loss_distance import distance_table
from tests.unit.orchestrator.records import record_of

CURVE = np.array([2.0, 1.0, 0.5, 0.25, 0.125])
EPOCHS = np.arange(1.0, 6.0)


def curve(losses, at=EPOCHS):
    return Curve.of(at, losses)


def test_the_distance_is_the_mean_difference_of_the_logarithms():
    ones, others = [curve(CURVE)] * 2, [curve(CURVE * 1.1), curve([2.0, 1.0, 0.5, 0.25, 0.25])]
    assert distances(ones, others) == pytest.approx([math.log(1.1), math.log(2) / 5])
    assert distances(others, ones) == pytest.approx(distances(ones, others)), "it has no direction"


def test_curves_are_compared_over_their_common_range():
    # ln loss falls by ln 2 each 100 samples; the other has four further positions between 150 and 500.
    one = curve(CURVE, 100 * EPOCHS)
    at = np.array([150.0, 250.0, 350.0, 450.0, 475.0, 550.0, 650.0])
    other = curve(3 * 2 * 2 ** (-(at - 100) / 100), at)
    assert math.isnan(distance(one, other)), "only four common positions"
    longer = curve(2 * 2 ** (-(np.arange(100.0, 1000.0, 50.0) - 100) / 100), np.arange(100.0, 1000.0, 50.0))
    assert distance(longer, other) == pytest.approx(math.log(3))
    # Half a step further on, a curve that falls by ln 2 a step is ln 2 / 2 lower throughout.
    assert distance(longer, Curve(at=longer.at - 50, log_loss=longer.log_loss)) == pytest.approx(math.log(2) / 2)


def test_the_last_loss_of_a_position_counts():
    found = Curve.of([3, 1, 2, 2, 4, 5], [0.5, 2.0, 9.0, 1.0, 0.0, math.inf])
    assert found.at.tolist() == [1, 2, 3] and found.log_loss == pytest.approx(np.log([2.0, 1.0, 0.5]))
    assert math.isnan(distance(found, found)) and FEWEST == 5, "three are points"
    assert math.isnan(distance(None, curve(CURVE))) and math.isnan(distance(Curve.of([], []), curve(CURVE)))


def test_distances_of_cells_and_seeds_equal_those_by_hand():
    ones = [curve(CURVE * factor) for factor in (1, 1.2, 1.4)]
    found = between_cells(ones, [curve(CURVE * factor) for factor in (1.1, 1.2 * 1.1, 1.4 * 1.2)])
    logs = np.log([1.1, 1.1, 1.2])
    half = 4.302652729911275 * logs.std(ddof=1) / math.sqrt(3)  # Student's t, 2 degrees of freedom
    assert (found.point[0], found.hi[0]) == pytest.approx((logs.mean(), logs.mean() + half))
    assert between_seeds(ones) == pytest.approx(np.mean([math.log(1.2), math.log(1.4), math.log(1.4 / 1.2)]))
    assert math.isnan(between_seeds(ones[:1]))


def test_pseudo_values_equal_those_of_the_jackknife():
    logs = [0.0, 0.1, 0.3, 0.7]
    curves = [curve(CURVE * math.exp(each)) for each in logs]
    whole = between_seeds(curves)
    left_out = [4 * whole - 3 * between_seeds([c for c in curves if c is not out]) for out in curves]
    assert pseudo_values(curves) == pytest.approx(left_out)
    assert pseudo_values([curves[0], None, *curves[1:]])[[0, 2, 3, 4]] == pytest.approx(left_out)
    assert np.isnan(pseudo_values([*curves[:2], None])).all(), "two seeds"


losses = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=12)


@given(losses, losses, losses, st.floats(0.01, 100))
def test_distance_is_a_metric_independent_of_units(one, other, third, unit):
    a, b, c = (curve(each[:6], np.arange(6.0)) for each in (one, other, third))
    assert distance(a, a) == 0
    assert distance(a, b) == distance(b, a) >= 0
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9
    scaled = [Curve(at=each.at * unit, log_loss=each.log_loss + math.log(unit)) for each in (a, b)]
    assert distance(*scaled) == pytest.approx(distance(a, b), abs=1e-9)
    offset = Curve(at=a.at, log_loss=a.log_loss + math.log(unit))
    assert distance(a, offset) == pytest.approx(abs(math.log(unit)), abs=1e-9)


@given(st.lists(losses, min_size=3, max_size=6))
def test_the_mean_of_the_pseudo_values_is_the_mean_distance(several):
    curves = [curve(each[:6], np.arange(6.0)) for each in several]
    assert pseudo_values(curves).mean() == pytest.approx(between_seeds(curves), abs=1e-9)


def test_equal_distributions_have_equal_distances_within_and_between():
    generator = np.random.default_rng(0)
    told = []
    for _ in range(1000):
        one, other = ([curve(np.exp(generator.normal(0, 0.03, 8)), np.arange(8.0)) for _ in range(5)] for _ in "ab")
        told.append(distances(one, other) - (pseudo_values(one) + pseudo_values(other)) / 2)
    apart = np.array(told)
    assert apart.mean() == pytest.approx(0, abs=0.0005), "of .034"
    half = 2.776 * apart.std(axis=1, ddof=1) / math.sqrt(5)
    assert 0.92 <= (np.abs(apart.mean(axis=1)) <= half).mean() <= 0.98


def frames(factors):
    """Cells of 1, 2 and 4 gpus with three seeds; the curves of each are those of the first times a factor."""
    records, rows = [], []
    for gpus, factor in factors.items():
        for seed in range(3):
            record = record_of(gpus, seed, metrics={"samples_per_s": 100.0, "loss": 1.0})
            records.append(record)
            losses = CURVE * factor * (1 + 0.03 * seed)
            rows += [{"trial_id": record.trial_id, "epoch": e, "loss": loss} for e, loss in enumerate(losses, start=1)]
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    return trials, cells, pd.DataFrame(rows).astype({"trial_id": "category"})


def _table(trials, cells, curves):
    return distance_table(cells, loss_curves(trials, curves))


def test_the_table_has_each_pair_nearest_first() -> None:
    found = _table(*frames({1: 1.0, 2: 1.01, 4: 1.5}))
    assert found is not None and list(found.frame["epochs"]) == ["5", "5", "5"]
    assert found.frame["distance"].str.startswith(("0.00995", "0.396", "0.405")).all()
    assert (found.frame["cell"][0], found.frame["and"][0]) == ("1×32 none", "2×32 none")
    by_chance = np.mean([math.log(1.03), math.log(1.06), math.log(1.06 / 1.03)])
    assert float(found.frame["by chance"][0]) == pytest.approx(by_chance, rel=0.01)


def test_short_curves_and_single_seeds_are_not_compared() -> None:
    trials, cells, curves = frames({1: 1.0, 2: 1.1})
    assert _table(trials, cells, curves[curves["epoch"] < 5]) is None
    assert _table(trials[trials["seed"] == 0], cells, curves) is None
    assert _table(trials, cells, curves.iloc[:0]) is None


def test_positions_are_samples_of_one_model():
    trials, _, curves = frames({1: 1.0, 2: 1.1})
    assert {tuple(c.at) for by_seed in loss_curves(trials, curves).values() for c in by_seed.values()} == {
        (1, 2, 3, 4, 5)
    }
    curves["samples"] = curves["epoch"] * 100
    at = {tuple(c.at) for by_seed in loss_curves(trials, curves).values() for c in by_seed.values()}
    assert at == {(100, 200, 300, 400, 500)}
    alone = trials.assign(strategy="independent", ranks=trials["gpus"])
    at = {tuple(c.at) for by_seed in loss_curves(alone, curves).values() for c in by_seed.values()}
    assert at == {(100, 200, 300, 400, 500), (50, 100, 150, 200, 250)}
    curves.loc[0, "samples"] = math.nan
    assert {c.at[0] for by_seed in loss_curves(trials, curves).values() for c in by_seed.values()} == {1}


def test_many_cells_are_compared_with_their_reference_only() -> None:
    found = _table(*frames({gpus: 1.0 + gpus / 100 for gpus in range(1, 13)}))
    assert found is not None and len(found.frame) == 11
