"""A few simulated sweeps through each estimator; `benchmarks/simulation` has the rates."""

import ast
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulation import worlds, yardstick
from benchmarks.simulation.report import parts
from benchmarks.simulation.worlds import CLEAN, LOSSES, Noise


def test_the_simulator_shares_no_code_with_the_estimators():
    tree = ast.parse(Path(worlds.__file__).read_text())
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"__future__", "dataclasses", "numpy", "pathlib"}


def test_the_report_has_every_part():
    assert {"recommendation", "rules"} <= set(parts(10, 2))


@pytest.mark.parametrize(
    ("simulate", "name", "least", "most"),
    [
        (lambda g: yardstick.interval_coverage(CLEAN, 3, 4000, g), "paired ratio", 0.93, 0.97),
        (lambda g: {"coverage": yardstick.shrunken_coverage(CLEAN, 3, 100, g)}, "coverage", 0.92, 0.98),
        (lambda g: {"rate": yardstick.false_equivalence(CLEAN, 3, 4000, g, 0.03)}, "rate", 0.0, 0.06),
        (lambda g: yardstick.recommendations(CLEAN, 3, 12, g), "behind by no more than told (95%)", 0.83, 1.0),
        (lambda g: yardstick.collapses(CLEAN, 3, 4, g), "its cell is recommended", 0.0, 0.0),
        (lambda g: yardstick.hours_of_ties(Noise(own=0.01), 3, 100, g), "hours over the fewest", 1.0, 1.05),
        (lambda g: yardstick.extrapolation_coverage(next(iter(LOSSES)), CLEAN, 3, 5, g), "coverage, 8 GPUs", 0.6, 1.0),
        (lambda g: yardstick.marked_by_compare(CLEAN, 3, 150, g, 4), "marked", 0.0, 0.06),
    ],
)
def test_rates_of_a_small_sample_are_in_their_bounds(simulate, name, least, most):
    assert least <= simulate(np.random.default_rng(7))[name] <= most
