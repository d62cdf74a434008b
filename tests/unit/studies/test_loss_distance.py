"""The table of distances between loss curves, against distances by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from studies.loss_distance import distance_table, loss_curves, write
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of

CURVE = np.array([2.0, 1.0, 0.5, 0.25, 0.125])


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


def test_the_table_has_each_pair_nearest_first():
    table = _table(*frames({1: 1.0, 2: 1.01, 4: 1.5}))
    assert list(table.frame["epochs"]) == ["5", "5", "5"]
    assert table.frame["distance"].str.startswith(("0.00995", "0.396", "0.405")).all()
    assert (table.frame["cell"][0], table.frame["and"][0]) == ("1×32 none", "2×32 none")
    by_chance = np.mean([math.log(1.03), math.log(1.06), math.log(1.06 / 1.03)])
    assert float(table.frame["by chance"][0]) == pytest.approx(by_chance, rel=0.01)


def test_short_curves_and_single_seeds_are_not_compared():
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


def test_many_cells_are_compared_with_their_reference_only():
    table = _table(*frames({gpus: 1.0 + gpus / 100 for gpus in range(1, 13)}))
    assert len(table.frame) == 11


def test_the_table_is_written_among_those_of_a_sweep(tmp_path):
    write(tmp_path)
    assert not list(tmp_path.iterdir())
    tables = dict(zip(("trials", "summary", "curves"), frames({1: 1.0, 2: 1.01}), strict=True))
    for name, table in tables.items():
        table.to_parquet(tmp_path / f"{name}.parquet")
    write(tmp_path)
    assert "0.00995" in (tmp_path / "loss_distance.md").read_text()
