"""A sample of the simulations, on every test run; `python -m tests.simulation.report` runs them in full.

Bounds leave three standard errors to chance; the generator is explicit, so that they hold on every run or on none.
"""

import ast
from pathlib import Path

import numpy as np
import pytest

from tests.simulation import worlds, yardstick
from tests.simulation.worlds import CLEAN, CONTAMINATED


@pytest.fixture
def generator():
    return np.random.default_rng(7)


def test_the_simulator_shares_no_code_with_the_estimators():
    tree = ast.parse(Path(worlds.__file__).read_text())
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"__future__", "dataclasses", "numpy"}


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_cover_in_clean_sweeps(seeds, generator):
    coverage = yardstick.interval_coverage(CLEAN, seeds, 4000, generator)
    assert all(0.93 <= rate <= 0.97 for rate in coverage.values()), coverage


def test_pairing_withstands_drift(generator):
    drift = CONTAMINATED["AR(1) drift, ρ = 0.6"]
    assert yardstick.interval_coverage(drift, 5, 4000, generator)["paired ratio"] > 0.94


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_shrunken_variances_cover_too(seeds, generator):
    assert 0.92 <= yardstick.shrunken_coverage(CLEAN, seeds, 25, generator) <= 0.98


def test_unreached_targets_do_not_spoil_the_median(generator):
    found = yardstick.median_coverage(0.2, 5, 60, generator)
    assert found["coverage"] >= 0.9 and found["has an interval"] > 0.9


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_false_equivalence_is_rare(seeds, generator):
    assert yardstick.false_equivalence(CLEAN, seeds, 4000, generator, 0.03) <= 0.05 + 3 * (0.05 * 0.95 / 4000) ** 0.5


def test_the_recommendation_regrets_little_and_knows_how_sure_it_is(generator):
    found = yardstick.recommendations(CLEAN, 3, 12, generator)
    assert found["median regret"] <= 0.02
    assert abs(found["probability of within, as told"] - found["truly within the margin"]) < 0.3
    assert found["behind by no more than told (95%)"] >= 10 / 12


def test_usl_parameters_lie_in_their_intervals(generator):
    assert min(yardstick.usl_coverage(CLEAN, 3, 25, generator).values()) >= 0.8
