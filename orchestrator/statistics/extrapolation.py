"""Throughput on more GPUs than were measured, from how the cost of a sample has grown with each doubling.

The cost of a sample is the GPU-seconds that it takes. The growth from one doubling to the next has a ratio: 1/2 for a
ring's bandwidth, about 0.85 for waits for the slowest rank, 1 for a tree's latency, 2 for a serial part (Amdahl, AFIPS
1967) and a ring's latency, 4.4 to 5 for coherency (Gunther, arXiv:0808.1431, 2008). The ratio of a sum of such costs
rises from doubling to doubling, because a sum of geometric sequences is logarithmically convex. So the cost stays at
least as it is, and at most its growth follows the larger of 2 and the ratio that was measured.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

from orchestrator.statistics.intervals import UPPER_90, Array, Interval

COUNTS = 3  # an extrapolation needs this many different GPU counts
FARTHEST = 8  # it ends at this many times the largest count
LEAST, SERIAL, LARGEST = 0.5, 2.0, 4.5
"""Ratios of the growth: for a ring's bandwidth, for a serial part, and for coherency."""
RISES = 1.15  # a ratio may rise by this factor until the next doubling
NOISE = 0.01  # prior deviation of log throughputs; it counts as much as one seed


class NoExtrapolationError(ValueError):
    """The error for GPU counts that allow no extrapolation."""


def paired(rates: Mapping[float, Mapping[int, float]]) -> dict[float, list[float]]:
    """Return the rates of the seeds that ran on all GPU counts, from {GPUs: {seed: samples per second}}.

    Raises NoExtrapolationError if there is no such seed.
    """
    # Seeds on all counts are compared with themselves, so that what a seed does to its speed cancels out.
    seeds = sorted(set.intersection(*map(set, rates.values()))) if rates else []
    if not seeds:
        raise NoExtrapolationError("no seed ran on all GPU counts")
    return {gpus: [by_seed[seed] for seed in seeds] for gpus, by_seed in rates.items()}


def extrapolated(rates: Mapping[float, Sequence[float]], gpus: float) -> Interval:
    """Return samples per second on this many GPUs, with a 90% interval.

    `rates` has samples per second by GPU count, of the same seeds in the same order (see `paired`). Raises
    NoExtrapolationError.
    """
    counts = sorted(rates)
    if len(counts) < COUNTS:
        raise NoExtrapolationError(f"needs {COUNTS} GPU counts, and {len(counts)} were measured")
    if not counts[0] <= gpus <= FARTHEST * counts[-1]:
        raise NoExtrapolationError(f"{gpus:g} GPUs are not from {counts[0]:g} to {FARTHEST} × {counts[-1]:g}")
    last = min(max(COUNTS - 1, bisect_left(counts, gpus)), len(counts) - 1)
    used = np.array(counts[last - 2 : last + 1], dtype=np.float64)
    logs = np.array([np.log(count) - np.log(rates[count]) for count in used])  # (counts, seeds)
    costs = np.exp(logs.mean(axis=1))
    deviations = costs[:, None] * (logs - logs.mean(axis=1, keepdims=True))
    doublings = np.log2(used)
    steps = np.diff(doublings)

    # Growth for each doubling. Noise decides how far its ratio may be off.
    growth = np.diff(costs) / steps
    priors = math.sqrt(2) * NOISE * costs[1:] / steps
    errors = [
        _reach(row, prior) for row, prior in zip(np.diff(deviations, axis=0) / steps[:, None], priors, strict=True)
    ]
    between = (doublings[2] - doublings[0]) / 2
    ratio = _ratio(growth[0], growth[1], between)
    highest = _ratio(growth[0] - errors[0], growth[1] + errors[1], between)
    if _ratio(growth[0] + errors[0], growth[1] - errors[1], between) > RISES * LARGEST:
        one, two, four = (f"{count:g}" for count in used)
        raise NoExtrapolationError(
            f"cannot be predicted: the losses from {one} to {two} and from {two} to {four} disagree"
        )

    def cost(ratio: float, side: int) -> float:
        """Return the cost with this ratio of growth, or the end of its interval at one side."""
        times = _growth(ratio, float(steps[1]), math.log2(gpus) - float(doublings[2]))
        cost = costs[2] + max(0.0, costs[2] - costs[1]) * times
        of_seeds = (1 + times) * deviations[2] - times * deviations[1]
        return float(max(cost + side * _reach(of_seeds, math.hypot(1 + times, times) * NOISE * costs[2]), cost / 10))

    point = cost(min(max(ratio, LEAST), LARGEST) if growth[0] > 0 else SERIAL, 0)
    ratios = [0.0, min(max(RISES * highest, SERIAL), LARGEST)]
    # Between the measured counts, the cost falls with the ratio: the later the cost has grown, the less of it is here.
    if gpus < used[2]:
        ratios.reverse()
    least, most = cost(ratios[0], -1), cost(ratios[1], 1)
    # Only the later growth shows: the GPUs may share something that is now used up, such as a loader.
    if highest > LARGEST and growth[1] > errors[1] / 2:
        most = max(most, float(costs[2] + _reach(deviations[2], NOISE * costs[2])) * gpus / float(used[2]))
    rate, lowest, highest_rate = gpus / point, gpus / most, gpus / least
    return Interval(point=np.asarray(rate), lo=np.asarray(lowest), hi=np.asarray(highest_rate))


def _growth(ratio: float, step: float, doublings: float) -> float:
    """Return the growth in so many further doublings, in units of that in the last `step` of them."""
    if ratio == 0:
        return 0.0
    if abs(ratio - 1) < 1e-6:
        return doublings / step
    return float(ratio**step * (ratio**doublings - 1) / (ratio**step - 1))


def _ratio(before: float, after: float, between: float) -> float:
    """Return the ratio of two growths for one doubling; infinity if only the later one shows."""
    if after <= 0:
        return 0.0
    return math.inf if before <= 0 else float((after / before) ** (1 / between))


def _reach(deviations: Array, prior: float) -> float:
    """Return the half width of a mean's interval, from the deviations of the seeds."""
    from scipy.special import stdtrit  # slow to import

    seeds = len(deviations)
    variance = (float(deviations @ deviations) + prior**2) / seeds
    return float(stdtrit(seeds, UPPER_90)) * math.sqrt(variance / seeds)
