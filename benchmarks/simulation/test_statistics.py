"""Estimators and schedules on random samples: how often intervals cover, and how near a makespan is to its bound.

The unit tests of these modules hold values computed by hand; what is random in them is simulated here.
"""

import dataclasses
import math
import random

import numpy as np
import pytest

from benchmarks.scheduling import lower_bound_s
from orchestrator.schedule.cluster import Node
from orchestrator.schedule.simulation import makespan_s, simulate
from orchestrator.statistics.intervals import mean, proportion_interval, ratio
from orchestrator.statistics.variances import moderated
from tests.unit.orchestrator.schedule.test_scheduler import gang, grid, unknown
from tests.unit.orchestrator.statistics.test_pooling import ERROR, LAW, LIKENESS, errors, pooled


@pytest.mark.parametrize("n", [3, 5, 10])
def test_intervals_cover_the_truth(n: int) -> None:
    generator = np.random.default_rng(n)
    shape = (20_000, n)
    seeds = generator.normal(0, 0.1, shape)  # what a seed does to both of its cells
    fast = np.exp(math.log(200) + seeds + generator.normal(0, 0.05, shape))
    slow = np.exp(math.log(100) + seeds + generator.normal(0, 0.05, shape))
    noisy = np.exp(math.log(100) + generator.normal(0, 0.3, shape))
    cases = {
        "mean": (mean(generator.normal(7, 2, shape)), 7),
        "paired": (ratio(fast, slow, paired=True), 2),
        "welch, alike": (ratio(fast, np.roll(slow, 1, axis=0), paired=False), 2),
        "welch, unlike": (ratio(fast, noisy, paired=False), 2),
    }
    for name, (interval, truth) in cases.items():
        coverage = float(np.mean((interval.lo <= truth) & (truth <= interval.hi)))
        assert 0.93 <= coverage <= 0.97, (name, coverage)


@pytest.mark.parametrize(("p", "samples"), [(0.9, 300), (0.99, 1000), (0.999, 300), (0.999, 10_000)])
@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_intervals_of_proportions_cover(p: float, samples: int, seeds: int) -> None:
    values = np.random.default_rng(1).binomial(samples, p, (2000, seeds)) / samples
    interval = proportion_interval(values, np.full(values.shape, float(samples)))
    assert ((interval.lo <= p) & (p <= interval.hi)).mean() >= 0.93
    assert (interval.lo >= 0).all() and (interval.hi <= 1).all() and (interval.hi > interval.lo).all()


def test_unrelated_cells_are_not_pooled():
    generator = np.random.default_rng(2)
    alone, together, covered = errors(generator.uniform(0.8, 0.9, (60, 12)), generator)
    assert together < 1.03 * alone and 0.92 <= covered <= 0.98


def test_recipes_may_differ_by_any_step():
    generator = np.random.default_rng(3)
    steps = generator.uniform(-0.3, 0.3, (60, 1)) * LIKENESS.recipe
    alone, together, covered = errors(LAW + steps, generator)
    assert together < 0.9 * alone and 0.92 <= covered <= 0.98


def test_errors_of_few_degrees_of_freedom_have_longer_tails():
    normal, few = (pooled(LAW, freedom=freedom, draws=20_000)[:, 0] for freedom in (np.inf, 3.0))
    assert np.std(few) > 1.3 * np.std(normal) and np.mean(few) == pytest.approx(np.mean(normal), abs=ERROR / 10)


def test_errors_with_few_degrees_of_freedom_follow_t():
    ends = [np.quantile(pooled(LAW, freedom=freedom, draws=8000)[:, 0], [0.025, 0.975]) for freedom in (4, np.inf)]
    assert np.ptp(ends[0]) / np.ptp(ends[1]) == pytest.approx(2.776 / 1.960, rel=0.06)


def test_variances_follow_a_trend() -> None:
    """The spread doubles with each unit of the covariate: the trend is nearer to the truth than one common variance."""
    generator = np.random.default_rng(4)
    place = np.repeat(np.arange(4.0), 6)
    true = 4.0**place
    sample = true * generator.chisquare(2, 24) / 2
    freedom = np.full(24, 2.0)
    by_trend, by_level = (moderated(sample, freedom, given)[0] for given in (place[:, None], None))
    errors = [float(np.abs(np.log(pooled / true)).mean()) for pooled in (by_trend, by_level)]
    assert errors[0] < 0.6 * errors[1]


def test_makespan_of_gangs_over_nodes_is_near_the_lower_bound():
    rng = random.Random(0)
    trials = [gang(str(n), 2 * nodes, seed=n % 2, nodes=nodes) for n, nodes in enumerate([1, 1, 2, 4] * 10)]
    takes = {trial.trial_id: rng.uniform(5, 15) for trial in trials}
    thought = {key: seconds * rng.uniform(0.7, 1.3) for key, seconds in takes.items()}
    nodes = [Node(name=f"n{n}", cpus=2, gpus=2) for n in range(4)]
    stays = simulate(trials, nodes, lambda t: thought[t.trial_id], lambda t: takes[t.trial_id])
    bound_s = lower_bound_s(trials, nodes, lambda t: takes[t.trial_id])
    assert bound_s <= makespan_s(stays) <= 1.10 * bound_s


@pytest.mark.parametrize("gpus", [8, 64])
def test_makespan_is_near_the_lower_bound(gpus):
    rng = random.Random(gpus)
    trials = [gang(str(n), rng.choice([1, 1, 2, 4, 8]), seed=n % 3, cpus=8) for n in range(1000)]
    takes = {trial.trial_id: rng.lognormvariate(0, 1) for trial in trials}
    thought = {key: seconds * rng.uniform(0.7, 1.3) for key, seconds in takes.items()}
    nodes = [Node(name=f"n{n}", cpus=64, gpus=8) for n in range(gpus // 8)]
    stays = simulate(trials, nodes, lambda t: thought[t.trial_id], lambda t: takes[t.trial_id])
    bound_s = lower_bound_s(trials, nodes, lambda t: takes[t.trial_id])
    assert bound_s <= makespan_s(stays) <= 1.05 * bound_s


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_order_by_seed_lengthens_a_sweep_by_less_than_5_percent(gpus):
    """Compares with an order that is free to run all seeds of a size together: 9 cells of each size, 3 seeds."""
    trials, takes = grid([2**power for power in range(4) if 2**power <= gpus], 9, 3)
    nodes = (Node(name="a", cpus=64, gpus=gpus),)
    apart = [dataclasses.replace(trial, seed=0) for trial in trials]
    by_seed, by_size = (makespan_s(simulate(order, nodes, unknown, takes)) for order in (trials, apart))
    assert by_size <= by_seed <= 1.05 * by_size
