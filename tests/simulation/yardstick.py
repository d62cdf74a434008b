"""What the estimators make of simulated sweeps, against their truth: rates over many simulations."""

from __future__ import annotations

import numpy as np
from scipy.stats import t as student_t

from orchestrator.decision.choice import Contest, choose, shortfalls
from orchestrator.statistics.bootstrap import mean_interval
from orchestrator.statistics.censoring import median_time
from orchestrator.statistics.equivalence import Difference
from orchestrator.statistics.means import Moments, welch
from orchestrator.statistics.scaling_law import USL, Fit
from tests.simulation.worlds import CLEAN, Noise, World, usl


def covered(interval, truth) -> float:
    return float(np.mean((interval.lo <= truth) & (truth <= interval.hi)))


def interval_coverage(noise: Noise, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Of a cell's mean, of a comparison paired by seed, and of one by Welch (seeds that differ)."""
    pair = noise.draw(generator, sims, 2, seeds)
    apart = noise.draw(generator, sims, 1, seeds)[:, 0]
    one, other = pair[:, 0], pair[:, 1]
    return {
        "mean": covered(mean_interval(one), 0.0),
        "paired ratio": covered(mean_interval(one - other), 0.0),
        "unpaired ratio": covered(welch(Moments.of(one), Moments.of(apart)), 0.0),
    }


def shrunken_coverage(noise: Noise, seeds: int, sims: int, generator: np.random.Generator, cells: int = 18) -> float:
    """Of the comparisons of a sweep's cells with its first, by the shrunken variances behind the recommendation."""
    hits = []
    for values in noise.draw(generator, sims, cells, seeds):
        contest = Contest(objective=np.exp(values), accuracy=values, baseline=0, margin=1.0)
        found = shortfalls(contest)
        half = student_t.ppf(0.975, found.freedom) * found.error
        hits.append(np.mean(np.abs(found.point[1:]) <= half[1:]))
    return float(np.mean(hits))


def median_coverage(share: float, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Of the median time to target where this share of the trials does not reach it within the budget."""
    sigma = np.hypot(CLEAN.seed, CLEAN.own)
    logs = CLEAN.draw(generator, sims, 1, seeds)[:, 0]
    budget = np.inf if share == 0 else float(np.quantile(generator.standard_normal(200_000), 1 - share)) * sigma
    hits, given = 0, 0
    for values in np.exp(logs):
        late = values > np.exp(budget)
        found = median_time(np.where(late, np.nan, values), np.where(late, np.exp(budget), np.nan))
        given += not np.isnan(found.lo)
        hits += bool(found.lo <= 1 <= found.hi)
    return {"coverage": hits / max(1, given), "has an interval": given / sims}


def false_equivalence(noise: Noise, seeds: int, sims: int, generator: np.random.Generator, margin: float) -> float:
    """How often a difference that is exactly the margin is called equivalent."""
    pair = noise.draw(generator, sims, 2, seeds)
    differences = Moments.of(pair[:, 0] - pair[:, 1] - margin)
    called = [
        Difference(point=float(mean), error=float(np.sqrt(variance / seeds)), freedom=seeds - 1).verdict(margin)
        for mean, variance in zip(differences.mean, differences.variance, strict=True)
    ]
    return float(np.mean([verdict == "equivalent" for verdict in called]))


def recommendations(noise: Noise, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Regret against the truly best cell within the margin, and whether the probabilities are honest."""
    margin, accuracy_noise = 0.01, 0.2
    regrets, within, says_best, says_within = [], [], [], []
    for _ in range(sims):
        world = World.draw(generator)
        cells = len(world.time)
        objective = world.time[:, None] * np.exp(noise.draw(generator, 1, cells, seeds)[0])
        accuracy = world.accuracy[:, None] + accuracy_noise * noise.draw(generator, 1, cells, seeds)[0]
        found = choose(Contest(objective=objective, accuracy=accuracy, baseline=0, margin=margin), generator)
        truly = world.accuracy >= world.accuracy[0] - margin
        best = world.time[truly].min()
        regrets.append(world.time[found.chosen] / best - 1 if truly[found.chosen] else np.nan)
        within.append(truly[found.chosen])
        says_best.append((found.p_best[found.chosen], truly[found.chosen] and world.time[found.chosen] <= best * 1.02))
        says_within.append(found.p_within[found.chosen])
    regret = np.array(regrets)
    told, right = np.array(says_best, dtype=float).T
    return {
        "median regret": float(np.nanmedian(regret)),
        "90th percentile of the regret": float(np.nanquantile(regret, 0.9)),
        "truly within the margin": float(np.mean(within)),
        "probability of within, as told": float(np.mean(says_within)),
        "truly best (within 2%)": float(right.mean()),
        "probability of best, as told": float(told.mean()),
        "right where it was over 90% sure": float(right[told >= 0.9].mean()) if (told >= 0.9).any() else np.nan,
        "over 90% sure": float((told >= 0.9).mean()),
    }


def usl_coverage(noise: Noise, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Of γ, α, β, and of the throughput at twice the largest GPU count; counts 1, 2, 4, 8."""
    counts = np.array([1.0, 2.0, 4.0, 8.0])
    hits = []
    for _ in range(sims):
        alpha, beta = generator.uniform(0, 0.15), generator.uniform(0, 0.01)
        logs = noise.draw(generator, 1, len(counts), seeds)[0]
        rates = (usl(counts, 1000.0, alpha, beta)[:, None] * np.exp(logs)).ravel()
        fit = Fit.of(USL, np.repeat(counts, seeds), rates, np.tile(np.arange(seeds), len(counts)))
        intervals = (fit.at(1), fit.shape_interval(0), fit.shape_interval(1), fit.at(16))
        truths = (1000.0, alpha, beta, float(usl(np.array([16.0]), 1000.0, alpha, beta)[0]))
        hits.append([bool(i.lo <= truth <= i.hi) for i, truth in zip(intervals, truths, strict=True)])
    names = ("γ", "α", "β", "throughput at twice the largest count")
    return dict(zip(names, np.mean(hits, axis=0).tolist(), strict=True))
