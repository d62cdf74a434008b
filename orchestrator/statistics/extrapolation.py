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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from orchestrator.statistics.intervals import UPPER_90, Array, Interval, student_quantile

COUNTS = 3  # an extrapolation needs this many different GPU counts
FARTHEST = 8  # it ends at this many times the largest count
STOPS, BANDWIDTH, SERIAL, COHERENCY = 0.0, 0.5, 2.0, 4.5
"""Ratios of the growth: none follows, a ring's bandwidth, a serial part, and coherency."""
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
    cost = _SampleCost.of(rates, _nearest_counts(sorted(rates), gpus))
    if cost.ratio(-1) > RISES * COHERENCY:
        one, two, four = (f"{count:g}" for count in cost.counts)
        raise NoExtrapolationError(
            f"cannot be predicted: the losses from {one} to {two} and from {two} to {four} disagree"
        )
    likely = min(max(cost.ratio(), BANDWIDTH), COHERENCY) if cost.growth_s[0] > 0 else SERIAL
    ratios = [STOPS, min(max(RISES * cost.ratio(1), SERIAL), COHERENCY)]
    # Between the measured counts, the cost falls with the ratio: the later the cost has grown, the less of it is here.
    if gpus < cost.counts[-1]:
        ratios.reverse()
    least_s, cost_s, most_s = cost.on(gpus, ratios[0], -1), cost.on(gpus, likely), cost.on(gpus, ratios[1], 1)
    if cost.may_be_used_up:
        most_s = max(most_s, cost.if_used_up(gpus))
    return Interval(point=np.asarray(gpus / cost_s), lo=np.asarray(gpus / most_s), hi=np.asarray(gpus / least_s))


def counts_to_measure(measured: Collection[float], asked: Collection[float]) -> list[float]:
    """Return the GPU counts from which those `asked` can be extrapolated: the measured ones, and the fewest more."""
    counts = {*measured} or {1.0}
    counts |= {count for count in asked if count < min(counts)}
    further = min(counts)
    while len(counts) < COUNTS or max(asked) > FARTHEST * max(counts) or counts == {*measured}:
        further *= 2
        counts.add(further)
    return sorted(counts)


def _nearest_counts(counts: Sequence[float], gpus: float) -> Sequence[float]:
    """Return three neighbouring counts, the last of which is the first at or above `gpus`, as far as there are any."""
    if len(counts) < COUNTS:
        timed = ", ".join(f"{count:g}" for count in counts)
        raise NoExtrapolationError(f"needs valid timings on {COUNTS} GPU counts, and has them on {timed}")
    if not counts[0] <= gpus <= FARTHEST * counts[-1]:
        raise NoExtrapolationError(f"{gpus:g} GPUs are not from {counts[0]:g} to {FARTHEST} × {counts[-1]:g}")
    end = min(max(COUNTS, bisect_left(counts, gpus) + 1), len(counts))
    return counts[end - COUNTS : end]


@dataclass(frozen=True, kw_only=True)
class _SampleCost:
    """The GPU-seconds of a sample on three GPU counts. An argument `side` of −1 or 1 asks for an end of an interval."""

    counts: Array  # (3,)
    mean_s: Array  # (3,) geometric means over the seeds
    deviations_s: Array  # (3, seeds) of the seeds from the means

    @staticmethod
    def of(rates: Mapping[float, Sequence[float]], counts: Sequence[float]) -> _SampleCost:
        """Return the costs on these counts."""
        logs = np.array([np.log(count) - np.log(rates[count]) for count in counts])
        log_means = logs.mean(axis=1, keepdims=True)
        means = np.exp(log_means)
        return _SampleCost(
            counts=np.array(counts, dtype=np.float64), mean_s=means[:, 0], deviations_s=means * (logs - log_means)
        )

    @cached_property
    def doublings(self) -> Array:
        """The doublings from each count to the next; (2,)."""
        return np.diff(np.log2(self.counts))

    @cached_property
    def growth_s(self) -> Array:
        """How much the cost has grown for each doubling; (2,)."""
        return np.diff(self.mean_s) / self.doublings

    @cached_property
    def growth_error_s(self) -> Array:
        """The half widths of the growths' intervals; (2,)."""
        deviations_s = np.diff(self.deviations_s, axis=0) / self.doublings[:, None]
        priors_s = math.sqrt(2) * NOISE * self.mean_s[1:] / self.doublings
        return np.array([_half_width(row, prior) for row, prior in zip(deviations_s, priors_s, strict=True)])

    def ratio(self, side: int = 0) -> float:
        """Return the ratio of the growth from one doubling to the next; infinity if only the later growth shows."""
        before_s, after_s = self.growth_s + side * self.growth_error_s * (-1, 1)
        if after_s <= 0:
            return 0.0
        if before_s <= 0:
            return math.inf
        # The growths are those of the middles of the two spans between counts.
        return float((after_s / before_s) ** (2 / self.doublings.sum()))

    def on(self, gpus: float, ratio: float, side: int = 0) -> float:
        """Return the GPU-seconds on this many GPUs if the growth has this ratio, at least a tenth of the estimate."""
        _, before_s, last_s = self.mean_s
        factor = _growth_factor(ratio, float(self.doublings[1]), math.log2(gpus) - math.log2(self.counts[2]))
        cost_s = float(last_s + max(0.0, last_s - before_s) * factor)
        deviations_s = (1 + factor) * self.deviations_s[2] - factor * self.deviations_s[1]
        error_s = _half_width(deviations_s, math.hypot(1 + factor, factor) * NOISE * last_s)
        return max(cost_s + side * error_s, cost_s / 10)

    @property
    def may_be_used_up(self) -> bool:
        """True if only the later growth shows: the GPUs may share something that is used up, such as a loader."""
        return self.ratio(1) > COHERENCY and bool(self.growth_s[1] > self.growth_error_s[1] / 2)

    def if_used_up(self, gpus: float) -> float:
        """Return the most GPU-seconds on this many GPUs if they are no faster together than the largest count."""
        most_s = self.mean_s[2] + _half_width(self.deviations_s[2], NOISE * self.mean_s[2])
        return float(most_s * gpus / self.counts[2])


def _growth_factor(ratio: float, last_doublings: float, further_doublings: float) -> float:
    """Return the growth in further doublings, in units of the growth in the last ones."""
    if ratio == 0:
        return 0.0
    if abs(ratio - 1) < 1e-6:
        return further_doublings / last_doublings
    return float(ratio**last_doublings * (ratio**further_doublings - 1) / (ratio**last_doublings - 1))


def _half_width(deviations: Array, prior: float) -> float:
    """Return the half width of a mean's 90% interval, from the deviations of the seeds."""
    seeds = len(deviations)
    variance = (float(deviations @ deviations) + prior**2) / seeds
    return float(student_quantile(seeds, UPPER_90)) * math.sqrt(variance / seeds)
