"""Misses of the margin by both answers of a recommendation, the safe choice and the fast bet, by many laws."""

from __future__ import annotations

import numpy as np

from benchmarks.simulation.worlds import CLEAN, OTHER_LAWS, Noise, of_law, of_other_law
from benchmarks.simulation.yardstick import DRAWS, MARGIN, measured
from orchestrator.decision.choice import choose
from orchestrator.decision.thresholds import SURE, TIE

TOLD = 0.04
"""By how much the told share of misses may differ from the true one."""

SWEEPS = {4: 2.0, 16: 1.5, 64: 0.75, 256: 0.3}
"""The number of simulated sweeps by the number of cells, relative to the number that is asked for."""


def safe_and_fast(
    law: str, cells: int, seeds: int, sims: int, generator: np.random.Generator
) -> dict[str, float | None]:
    """Return told and true misses of the margin, the mean slowdown of safe choice and fast bet, and P(near best).

    The slowdown is against the fastest cell that is truly within the margin, over sweeps whose choice is within it.
    """
    rows, noise = [], Noise(seed=0.015, own=0.02)
    for _ in range(sims):
        if law in OTHER_LAWS:
            world, accuracy, samples = of_other_law(law, seeds, generator)
        else:
            world, samples = of_law(law, cells, generator), np.nan
            varies = generator.choice([0.1, 0.2, 0.4])
            accuracy = world.accuracy[:, None] + varies * noise.draw(generator, 1, cells, seeds)[0]
        objective = world.time[:, None] * np.exp(CLEAN.draw(generator, 1, cells, seeds)[0])
        truly = world.accuracy >= world.accuracy[0] - MARGIN - 1e-9
        slower = world.time / world.time[truly].min() - 1
        choice = choose(measured(world, objective, accuracy, samples), generator, DRAWS)
        fast = choice.favourite
        if fast is None or np.isnan(choice.p_within[fast]) and seeds > 1:  # collapsed seeds left too few
            continue
        safe = 0 if choice.safe is None else choice.safe  # with one seed, only the baseline is known to be within
        best = truly[fast] and slower[fast] <= TIE
        own = [figure for row in (fast, safe) for figure in (truly[row], slower[row] if truly[row] else np.nan)]
        rows.append((choice.p_within[fast], choice.p_within[safe], choice.p_best[fast], best, *own))
    told, told_safe, p_best, best, within, slower, within_safe, slower_safe = np.array(rows, dtype=float).T
    sure = p_best > SURE
    rates = {
        "fast bet misses, told": float(1 - told.mean()),
        "fast bet misses": float(1 - within.mean()),
        "slowdown": float(np.nanmean(slower)),
        "safe misses, told": float(1 - told_safe.mean()),
        "safe misses": float(1 - within_safe.mean()),
        "safe: slowdown": float(np.nanmean(slower_safe)),
        "P(near best) over 90%": float(sure.mean()),
        "right there": float(best[sure].mean()) if sure.any() else np.nan,
    }
    return {name: None if np.isnan(rate) else rate for name, rate in rates.items()}
