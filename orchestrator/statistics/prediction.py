"""Predictions for other GPU counts from laws fitted to the measured counts, and the reasons to refuse one.

Throughput is averaged over laws (`statistics.law_average`). The samples to the target at another batch come from E =
E_min (1 + B/B_crit) (McCandlish et al. 2018). B_crit comes from the samples to the target if three or more batches
reached it, else from the gradient noise scale. A ring of M nodes exchanges the gradients of a step in 2(M − 1)/M ·
bytes/bandwidth + 2(M − 1) · latency (Thakur et al., "Optimization of collective communication operations in MPICH",
2005); how much of that overlaps with computation is unknown, so that the interval spans everything from none to all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from orchestrator.statistics.intervals import Array, Interval, Moments, logs, student
from orchestrator.statistics.law_average import EXCHANGE, FITS, LawAverage
from orchestrator.statistics.scaling_law import FEWEST_COUNTS, TooFewCountsError, critical_batch

FARTHEST = 8
"""Predictions end at this many times the largest count measured."""

BYTES_A_PARAMETER = 4
"""Bytes of a gradient in fp32."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """The nodes and the network between them."""

    gpus_per_node: float | None
    bandwidth_gb_s: float | None = None
    latency_s: float | None = None

    def nodes(self, gpus: float) -> int:
        """Return the number of nodes that this many GPUs need."""
        return 1 if self.gpus_per_node is None else math.ceil(gpus / self.gpus_per_node)

    def exchange_s(self, gpus: float, n_params: float) -> float:
        """Return the seconds to exchange a step's gradients between nodes; 0 on one node or an unknown network."""
        nodes = self.nodes(gpus)
        if nodes == 1 or self.bandwidth_gb_s is None or self.latency_s is None:
            return 0.0
        size_gb = n_params * BYTES_A_PARAMETER / 1e9
        return 2 * (nodes - 1) / nodes * size_gb / self.bandwidth_gb_s + 2 * (nodes - 1) * self.latency_s


@dataclass(frozen=True, kw_only=True)
class Line:
    """Cells that differ only in GPU count and in the side of the batch that scaling frees; one value per trial."""

    name: str
    weak: bool
    gpus: Array
    rates: Array
    seeds: Array
    batches: Array
    """Global batches."""
    samples_to_target: Array
    """NaN if the target was not reached."""
    noise_scale: float
    n_params: float
    start_up_s: float = 0.0
    """How much longer the first epoch takes than a later one: compiling and warming up."""
    parts: Mapping[str, Array] = field(default_factory=dict)
    """The share of its step that each trial spent in EXCHANGE and IMBALANCE; NaN where unknown."""

    @cached_property
    def average(self) -> LawAverage:
        """The laws, weighed by the measured rates."""
        return LawAverage.of(self.gpus, self.rates, self.seeds, strong=not self.weak, parts=self.parts)

    @property
    def has_enough_counts(self) -> bool:
        """True for three GPU counts, or for two if the exchange was measured at the larger."""
        counts = len(np.unique(self.gpus))
        exchange = self.parts.get(EXCHANGE, np.full(len(self.gpus), np.nan))
        return counts >= FEWEST_COUNTS or (counts == 2 and bool(np.isfinite(exchange[self.gpus == self.largest]).any()))

    @property
    def largest(self) -> float:
        """The largest GPU count measured."""
        return float(self.gpus.max())

    def batch_at(self, gpus: float) -> float:
        """Return the global batch with this many GPUs."""
        return float(self.batches[0] / self.gpus[0] * gpus) if self.weak else float(self.batches[0])

    def refusals(self, gpus: float, link: Link) -> list[str]:
        """Return the reasons to refuse a prediction for this many GPUs; empty if there is a prediction."""
        counts = len(np.unique(self.gpus))
        reasons = []
        if not self.has_enough_counts:
            few = "or 2 if the trials report the exchange's part of a step"
            reasons.append(f"{self.name}: a prediction needs {FEWEST_COUNTS} GPU counts, {few}, and there are {counts}")
        if gpus > FARTHEST * self.largest:
            reasons.append(f"{gpus:g} GPUs are more than {FARTHEST} times the {self.largest:g} that were measured")
        if link.gpus_per_node is None and gpus > self.largest:
            reasons.append(
                f"how many GPUs a node has is not known from the trials: give cluster.gpus_per_node, to tell whether"
                f" {gpus:g} GPUs are still on one"
            )
        crosses = link.nodes(gpus) > 1 and link.nodes(self.largest) == 1
        if crosses and (link.bandwidth_gb_s is None or link.latency_s is None):
            reasons.append(
                f"{gpus:g} GPUs take {link.nodes(gpus)} nodes of {link.gpus_per_node:g}, and the measurements saw one:"
                " give predict.bandwidth_gb_s and predict.latency_s of the way between nodes"
            )
        elif crosses and math.isnan(self.n_params):
            reasons.append(f"{self.name}: the trials report no n_params, which the exchange between nodes needs")
        return reasons


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one GPU count of one line. Intervals are NaN if too few trials were measured."""

    line: str
    gpus: float
    global_batch_size: float
    samples_per_s: Interval
    time_to_target_s: Interval
    how: str
    """The basis of the figures, for people."""


def predict(line: Line, gpus: float, link: Link) -> Prediction:
    """Predict throughput and time to target. Raises TooFewCountsError."""
    average = line.average
    rate = average.at(gpus)
    basis = ["beyond the largest count measured: extrapolated" if gpus > line.largest else "within what was measured"]
    if average.fit_p < FITS:
        basis.append(f"no law fits the measurements (p = {average.fit_p:.1g}): take it as a guess")
    batch = line.batch_at(gpus)
    exchange_s = link.exchange_s(gpus, line.n_params) if link.nodes(line.largest) == 1 else 0.0
    if exchange_s:
        rate = Interval(
            point=_slowed(rate.point, batch, exchange_s), lo=_slowed(rate.lo, batch, exchange_s), hi=rate.hi
        )
        basis.append(
            f"{exchange_s:.3g} s a step between nodes, hidden not at all (point, lower end) to wholly (upper end)"
        )
    samples, source = samples_at(line, batch)
    if source and line.start_up_s > 0:
        source += f"; {line.start_up_s:.3g} s of start-up as measured"
    return Prediction(
        line=line.name,
        gpus=gpus,
        global_batch_size=batch,
        samples_per_s=rate,
        time_to_target_s=_ratio(samples, rate).map(lambda seconds: seconds + max(0.0, line.start_up_s)),
        how="; ".join(filter(None, (*basis, source))),
    )


def samples_at(line: Line, batch: float) -> tuple[Interval, str]:
    """Return the samples needed to reach the target at this global batch, and their source."""
    reached = ~np.isnan(line.samples_to_target)
    if not reached.any():
        return _nothing(), ""
    batches, samples = line.batches[reached], line.samples_to_target[reached]
    if (batches == batch).any():
        own = student(Moments.of(logs(samples[batches == batch]))).map(np.exp)
        return own, "samples to the target as measured at this batch"
    try:
        critical, source = critical_batch(batches, samples), "batch economy from samples to the target"
    except TooFewCountsError:
        exact = np.asarray(line.noise_scale)
        critical = Interval(point=exact, lo=exact, hi=exact)
        source = "batch economy from the noise scale, taken as exact"
    if math.isnan(float(critical.point)):
        return _nothing(), "no time to target: neither three batches that reached it nor a noise scale"
    nearest = batches[np.argmin(np.abs(np.log(batches / batch)))]
    known = student(Moments.of(logs(samples[batches == nearest])))
    known_ends = [float(each) for each in (critical.point, critical.lo, critical.hi) if not np.isnan(each)]
    ends = [_growth(nearest, batch, at) for at in known_ends]
    half = float(known.hi - known.point)
    point = float(known.point) + ends[0]
    lo = point - math.hypot(half, ends[0] - min(ends))
    hi = point + math.hypot(half, max(ends) - ends[0])
    return Interval(point=np.exp(point), lo=np.exp(lo), hi=np.exp(hi)), source


def _growth(before: float, after: float, critical: float) -> float:
    """Return the logarithm of the growth in samples from batch `before` to `after`; at most that of the batch."""
    if critical <= 0:
        return math.log(after / before)
    return math.log((1 + after / critical) / (1 + before / critical))


def _slowed(rate: Array, batch: float, pause_s: float) -> Array:
    return np.asarray(batch / (batch / rate + pause_s))


def _ratio(samples: Interval, rate: Interval) -> Interval:
    """Return samples / rate of independent estimates: the half widths of the logarithms add in quadrature."""
    point = float(np.log(samples.point) - np.log(rate.point))
    below = math.hypot(float(np.log(samples.point / samples.lo)), float(np.log(rate.hi / rate.point)))
    above = math.hypot(float(np.log(samples.hi / samples.point)), float(np.log(rate.point / rate.lo)))
    return Interval(point=np.exp(point), lo=np.exp(point - below), hi=np.exp(point + above))


def _nothing() -> Interval:
    nothing = np.asarray(math.nan)
    return Interval(point=nothing, lo=nothing, hi=nothing)
