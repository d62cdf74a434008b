import math

import numpy as np
import pandas as pd
import pytest

from orchestrator.collection.collector import collect
from orchestrator.statistics.curve_distance import between_cells, between_seeds, by_seed
from orchestrator.tables.curve_distance import distance_table

CURVE = np.array([2.0, 1.0, 0.5, 0.25, 0.125])


def test_the_distance_is_the_mean_of_the_logarithms_differences() -> None:
    one = np.array([CURVE, CURVE])
    other = np.array([CURVE * 1.1, [2.0, 1.0, 0.5, 0.25, 0.25]])
    assert by_seed(one, other) == pytest.approx([math.log(1.1), math.log(2) / 5])
    assert by_seed(other, one) == pytest.approx(by_seed(one, other)), "it has no direction"


def test_epochs_that_one_of_them_lacks_are_left_out() -> None:
    other = np.array([[4.0, math.nan, 1.0, math.nan, 0.0]])
    assert by_seed(CURVE[None, :], other) == pytest.approx([math.log(2)])
    assert np.isnan(by_seed(CURVE[None, :], np.full((1, 5), math.nan))).all()


def test_pairs_of_seeds_have_an_interval_and_different_seeds_are_the_yardstick() -> None:
    one = np.array([CURVE, CURVE * 1.2, CURVE * 1.4])
    found = between_cells(one, one * np.array([[1.1], [1.1], [1.2]]))
    logs = np.log([1.1, 1.1, 1.2])
    half = 4.302652729911275 * logs.std(ddof=1) / math.sqrt(3)  # Student's t, 2 degrees of freedom
    assert (found.point[0], found.hi[0]) == pytest.approx((logs.mean(), logs.mean() + half))
    assert between_seeds(one) == pytest.approx(np.mean([math.log(1.2), math.log(1.4), math.log(1.4 / 1.2)]))
    assert math.isnan(between_seeds(one[:1]))


def frames(record_of, factors):
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


def test_the_table_has_each_pair_the_nearest_first(record_of) -> None:
    found = distance_table(*frames(record_of, {1: 1.0, 2: 1.01, 4: 1.5}))
    assert found is not None and list(found.frame["epochs"]) == ["5", "5", "5"]
    assert found.frame["distance"].str.startswith(("0.00995", "0.396", "0.405")).all()
    assert found.frame["cell"][0].startswith("gpus=1,") and found.frame["and"][0].startswith("gpus=2,")
    by_chance = np.mean([math.log(1.03), math.log(1.06), math.log(1.06 / 1.03)])
    assert float(found.frame["by chance"][0]) == pytest.approx(by_chance, rel=0.01)


def test_short_curves_and_single_seeds_are_not_compared(record_of) -> None:
    trials, cells, curves = frames(record_of, {1: 1.0, 2: 1.1})
    assert distance_table(trials, cells, curves[curves["epoch"] < 5]) is None
    assert distance_table(trials[trials["seed"] == 0], cells, curves) is None
    assert distance_table(trials, cells, curves.iloc[:0]) is None


def test_of_many_cells_each_is_compared_with_the_one_at_the_reference_batch(record_of) -> None:
    found = distance_table(*frames(record_of, {gpus: 1.0 + gpus / 100 for gpus in range(1, 13)}))
    assert found is not None and len(found.frame) == 11
