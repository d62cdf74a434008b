"""Throughput at GPU counts that were not measured, averaged over the laws that the measurements allow.

On N GPUs the throughput is X(N) = γN / s(N), where s(N) − 1 is the loss. Each of LAWS says how the loss from one cause
grows. A model is one law, or a mixture of two: it has a loss t at the largest count measured, and the first law has the
part w of it. The models are averaged by their posterior probabilities (Hoeting et al., "Bayesian model averaging: a
tutorial", Statistical Science 14, 1999). The likelihood has the seeds' levels and the variance integrated out; with the
prior it is summed over a grid of t and w. Single laws have 70% of the prior. Where the measurements cannot tell laws
apart, the interval spans them.

Sources of the laws: Amdahl (AFIPS 1967); Gunther, arXiv:0808.1431 (2008); Thakur et al., "Optimization of collective
communication operations in MPICH" (2005), for the ring and the tree; Williams et al., "Roofline" (CACM 52, 2009), for
the ceiling. A synchronous step waits for the slowest of N ranks: the expected maximum of N normal values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from orchestrator.statistics.intervals import TAIL, Array, Interval
from orchestrator.statistics.scaling_law import TooFewCountsError, Whole, seed_groups

EXCHANGE, IMBALANCE, REST = "exchange", "imbalance", "rest"
"""Parts of a step."""


def expected_maximum(ranks: Array) -> Array:
    """Return the expected maximum of this many standard normal values: ∫ 1 − Φ(x)^N − Φ(−x)^N dx over x > 0."""
    from scipy.special import ndtr

    at = np.linspace(0, 9, 2001)
    density = 1 - ndtr(at) ** ranks[..., None] - ndtr(-at) ** ranks[..., None]
    return np.asarray(np.trapezoid(density, at, axis=-1))


@dataclass(frozen=True, kw_only=True)
class Law:
    """How the loss from one cause grows with the number of GPUs."""

    name: str
    part: str
    growth: Callable[[Array], Array] | None
    """The loss on N GPUs in any unit, 0 on one; None for the ceiling C, whose loss is max(0, N/C − 1)."""


LAWS = (
    Law(name="serial part (Amdahl)", part=REST, growth=lambda n: n - 1),
    Law(name="coherency (USL)", part=REST, growth=lambda n: n * (n - 1)),
    Law(name="ceiling", part=REST, growth=None),
    Law(name="ring bandwidth", part=EXCHANGE, growth=lambda n: (n - 1) / n),
    Law(name="ring latency", part=EXCHANGE, growth=lambda n: n - 1),
    Law(name="tree latency", part=EXCHANGE, growth=np.log2),
    Law(name="fixed exchange", part=EXCHANGE, growth=lambda n: np.asarray(n > 1, dtype=np.float64)),
    Law(name="slowest rank", part=IMBALANCE, growth=expected_maximum),
)
_FIRST, _SECOND = np.array(list(combinations_with_replacement(range(len(LAWS)), 2))).T
_SINGLE = (_FIRST == _SECOND)[:, None]
_CEILING = np.array([law.growth is None for law in LAWS])
_LOG_PRIOR = np.log(np.where(_SINGLE, 0.7 / _SINGLE.sum(), 0.3 / (~_SINGLE).sum()))

_TYPICAL = 0.1
"""Median of the prior of a loss, whose density is a/(a + t)²."""
_CEILING_DENSITY = {True: 0.6, False: 0.15}
"""Prior density of the logarithm of the ceiling, with strong scaling or without: there it is the time to launch work,
which does not shrink with the work of a GPU; here something that all GPUs share, such as a loader."""

_GRID = 25
"""Grid points along t and w."""
_REFINEMENTS = 6
_LEAST = 12.0
"""A grid spans the points whose log likelihood is at most this much below the model's best."""

_NOISE, _NOISE_TRIALS = 0.01, 1.0
"""Prior deviation of log throughputs, and the trials that it counts for."""

_DISCREPANCY = 0.01
"""Standard deviation of what no law describes, for each doubling beyond the largest count measured."""

_PART_ERROR, _PART_FLOOR = 0.25, 0.005
"""Error of a measured part of a step: this share of the part, and this share of the step."""

_DRAWS = 20_000


@dataclass(frozen=True, kw_only=True)
class LawAverage:
    """The models with their weights, on grids of shape (models, points)."""

    largest: float
    """The largest GPU count measured."""
    strong: bool
    loss: Array
    """t."""
    share: Array
    """w."""
    weights: Array
    level: Array
    """Mean log γ."""
    level_error: float
    freedom: float
    """Degrees of freedom of the level; below 1 there are no intervals."""
    fit_p: float
    """p of the F test that the best model fits the means of the counts; NaN without repeated trials."""
    gap: float
    """How far the best model is from them: root mean square of the log, beyond the noise; 0 if the test passes."""

    @staticmethod
    def of(
        gpus: Array, rates: Array, seeds: Array, *, strong: bool, parts: Mapping[str, Array] | None = None
    ) -> LawAverage:
        """Weigh all models by the rates of trials. Raises TooFewCountsError for fewer than two GPU counts.

        With `strong` scaling the work of a GPU shrinks and an exchange does not. `parts` has the share of each trial's
        step that EXCHANGE and IMBALANCE took, NaN where unknown.
        """
        known = (rates > 0) & (gpus > 0) & np.isfinite(rates)
        counts, place = np.unique(gpus[known], return_inverse=True)
        if len(counts) < 2:
            raise TooFewCountsError(f"a prediction needs 2 GPU counts, and there are {len(counts)}")
        data = _Data.of(place, np.log(rates[known] / gpus[known]), seed_groups(gpus[known], seeds[known]))
        measured = {
            part: np.array([_mean(shares[known][place == number]) for number in range(len(counts))])
            for part, shares in (parts or {}).items()
        }
        start = 4 * float(
            counts[-1] / counts[0] * rates[known][place == 0].max() / rates[known][place == place.max()].min()
        )
        loss, share, log_weights = _weighed(data, counts, strong, measured, start)
        weights = np.exp(log_weights - log_weights.max())
        slowdown = _slowdown(loss, share, counts, float(counts[-1]), strong)
        squares = data.squares(slowdown)
        return LawAverage(
            largest=float(counts[-1]),
            strong=strong,
            loss=loss,
            share=share,
            weights=weights / weights.sum(),
            level=data.level + slowdown @ data.level_weights,
            **data.errors(float(squares.min()), slowdown.reshape(-1, len(counts))[squares.argmin()]),
        )

    def at(self, gpus: float) -> Interval:
        """Return the mean throughput on this many GPUs, in samples per second."""
        generator = np.random.default_rng(0)  # the same measurements give the same interval
        slowdown = _slowdown(self.loss, self.share, np.array([gpus]), self.largest, self.strong)[..., 0]
        logs = (self.level - slowdown + math.log(gpus)).ravel()
        logs = logs[generator.choice(logs.size, _DRAWS, p=self.weights.ravel())]
        point = np.asarray(math.exp(float(np.median(logs))))
        if self.freedom < 1:
            return Interval(point=point, lo=np.asarray(math.nan), hi=np.asarray(math.nan))
        doublings = max(0.0, math.log2(gpus / self.largest))
        logs += self.level_error * generator.standard_t(self.freedom, _DRAWS)
        logs += (_DISCREPANCY * doublings + self.gap * (1 + doublings)) * generator.standard_normal(_DRAWS)
        lo, hi = np.exp(np.quantile(logs, [1 - TAIL, TAIL]))
        return Interval(point=point, lo=np.asarray(lo), hi=np.asarray(hi))

    def parts(self) -> dict[str, float]:
        """Return the probable share of each law in the loss at the largest count, by name, the largest first."""
        first = (self.weights * np.where(_SINGLE, 1.0, self.share)).sum(axis=1)
        total = self.weights.sum(axis=1)
        found = np.bincount(_FIRST, first, len(LAWS)) + np.bincount(_SECOND, total - first, len(LAWS))
        return {LAWS[number].name: float(found[number]) for number in np.argsort(-found, kind="stable")}


@dataclass(frozen=True, kw_only=True)
class _Data:
    """Log rates per GPU of trials, reduced to functions of log s at the k counts."""

    square: float
    linear: Array
    quadratic: Array
    """Residual sum of squares within the groups = square + 2 linear·log s + log s·quadratic·log s."""
    level: float
    level_weights: Array
    """Mean of the groups' levels = level + level_weights·log s."""
    levels: Array
    level_matrix: Array
    """The same for each group."""
    trials: int

    @staticmethod
    def of(place: Whole, logs: Array, groups: Whole) -> _Data:
        at_count, in_group = np.eye(place.max() + 1)[place], np.eye(groups.max() + 1)[groups]
        means = (in_group / in_group.sum(axis=0)).T
        centred = np.eye(len(logs)) - in_group @ means
        return _Data(
            square=float(logs @ centred @ logs),
            linear=at_count.T @ centred @ logs,
            quadratic=at_count.T @ centred @ at_count,
            level=float((means @ logs).mean()),
            level_weights=(means @ at_count).mean(axis=0),
            levels=means @ logs,
            level_matrix=means @ at_count,
            trials=len(logs),
        )

    @property
    def freedom(self) -> int:
        """Degrees of freedom of repeated trials, whatever the law."""
        return self.trials - len(self.levels) - len(self.linear) + 1

    def squares(self, slowdown: Array) -> Array:
        """Return residual sums of squares; `slowdown` is log s, counts along the last axis."""
        products = slowdown @ (2 * self.linear) + np.einsum("...i,ij,...j->...", slowdown, self.quadratic, slowdown)
        return np.asarray(np.maximum(0.0, self.square + products))

    def errors(self, least: float, slowdown: Array) -> dict[str, float]:
        """Return the error of the level, and the test of fit of the best model, which has these squares."""
        from scipy.special import fdtrc

        groups, freedom, terms = len(self.levels), self.freedom, len(self.linear) - 1
        noise = (least + _NOISE_TRIALS * _NOISE**2) / (self.trials - groups + _NOISE_TRIALS)
        deviation = float((self.levels + self.level_matrix @ slowdown).std(ddof=1)) if groups > 1 else math.nan
        own = {
            "level_error": deviation / math.sqrt(groups) if groups > 1 else math.sqrt(noise / self.trials),
            "freedom": float(min(freedom, groups - 1) if groups > 1 else freedom),
        }
        if freedom < 1:
            return {**own, "fit_p": math.nan, "gap": 0.0}
        pure = max(0.0, self.square - float(self.linear @ np.linalg.pinv(self.quadratic) @ self.linear))
        lack = max(0.0, least - pure)
        p = float(fdtrc(terms, freedom, lack / terms / max(pure / freedom, _NEGLIGIBLE**2)))
        return {**own, "fit_p": p, "gap": math.sqrt(lack / self.trials) if p < FITS else 0.0}


FITS = 0.01
"""Below this p of the F test no model fits …"""
_NEGLIGIBLE = 0.003
"""… if its errors are larger than this part of the throughput."""


def _mean(shares: Array) -> float:
    known = shares[np.isfinite(shares)]
    return float(known.mean()) if len(known) else math.nan


def _weighed(
    data: _Data, counts: Array, strong: bool, measured: Mapping[str, Array], start: float
) -> tuple[Array, Array, Array]:
    """Return t, w and log weights on a grid for each model, refined to where its likelihood is."""
    models = len(_FIRST)
    lo, hi = np.zeros((2, models)), np.repeat([[start], [1.0]], models, axis=1)
    middles = (np.indices((_GRID, _GRID)).reshape(2, -1) + 0.5) / _GRID
    for left in reversed(range(_REFINEMENTS)):
        loss, share = lo[:, :, None] + (hi - lo)[:, :, None] * middles[:, None, :]
        found = _log_likelihood(data, counts, strong, measured, loss, share)
        if left == 0:
            break
        inside = found >= found.max(axis=1, keepdims=True) - _LEAST
        step = (hi - lo) / _GRID
        for axis, values in enumerate((loss, share)):
            lo[axis] = np.maximum(0.0, np.where(inside, values, np.inf).min(axis=1) - step[axis])
            hi[axis] = np.where(inside, values, -np.inf).max(axis=1) + step[axis]
        hi[1] = np.minimum(1.0, hi[1])
    wide = hi - lo
    area = wide[0] * np.where(_SINGLE[:, 0], 1.0, wide[1])
    return loss, share, found + _log_prior(loss, share, strong) + np.log(area)[:, None]


def _log_likelihood(
    data: _Data, counts: Array, strong: bool, measured: Mapping[str, Array], loss: Array, share: Array
) -> Array:
    losses = _losses(loss, share, counts, float(counts[-1]), strong)
    total = losses.sum(axis=0)
    freedom = data.trials - len(data.levels) + _NOISE_TRIALS
    found = -freedom / 2 * np.log(data.squares(np.log1p(total)) + _NOISE_TRIALS * _NOISE**2)
    for part, shares in measured.items():
        own = sum(
            np.array([law.part == part for law in LAWS])[laws][:, None, None] * each
            for laws, each in zip((_FIRST, _SECOND), losses, strict=True)
        )
        known = np.isfinite(shares) & (counts > 1)
        error = np.hypot(_PART_ERROR * shares[known], _PART_FLOOR)
        found = found - (((own / (1 + total))[..., known] - shares[known]) ** 2 / error**2).sum(axis=-1) / 2
    return np.asarray(found)


def _log_prior(loss: Array, share: Array, strong: bool) -> Array:
    """Return the log density of t and w. Smooth laws have t by a/(a + t)² and any w; a ceiling has its own density."""
    first = loss * np.where(_SINGLE, 1.0, share)
    ceiling = np.where(_CEILING[_FIRST][:, None], first, loss - first)
    smooth = loss - np.where((_CEILING[_FIRST] | _CEILING[_SECOND])[:, None], ceiling, 0.0)
    found = np.log(_TYPICAL) - 2 * np.log(_TYPICAL + smooth)
    at_ceiling = np.log(_CEILING_DENSITY[strong]) - np.log1p(ceiling)
    only = (_CEILING[_FIRST] & _CEILING[_SECOND])[:, None]
    mixed = (_CEILING[_FIRST] ^ _CEILING[_SECOND])[:, None]
    found = np.where(only, at_ceiling, found + np.where(mixed, at_ceiling + np.log(loss), 0.0))
    return np.asarray(found + _LOG_PRIOR)


def _slowdown(loss: Array, share: Array, gpus: Array, largest: float, strong: bool) -> Array:
    """Return log s, of shape (models, points, GPU counts)."""
    return np.asarray(np.log1p(_losses(loss, share, gpus, largest, strong).sum(axis=0)))


def _losses(loss: Array, share: Array, gpus: Array, largest: float, strong: bool) -> Array:
    """Return the losses of the first and the second law, of shape (2, models, points, GPU counts)."""
    top = np.array([largest])
    units: list[Any] = []
    for law in LAWS:
        unit = np.zeros(len(gpus)) if law.growth is None else law.growth(gpus) / law.growth(top)
        units.append(unit * gpus / largest if strong and law.part == EXCHANGE else unit)
    first = loss * np.where(_SINGLE, 1.0, share)
    found = []
    for laws, own in ((_FIRST, first), (_SECOND, loss - first)):
        each = own[..., None] * np.stack(units)[laws][:, None, :]
        above = np.maximum(0.0, (1 + own[_CEILING[laws]])[..., None] * gpus / largest - 1)
        each[_CEILING[laws]] = above
        found.append(each)
    found[1][_SINGLE[:, 0]] = 0.0
    return np.stack(found)
