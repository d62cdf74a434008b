"""Simulated sweeps whose truth is known. Shares no code with the estimators: only numpy, nothing of the project.

A value is exp(truth + seed + own): `seed` affects all cells alike, `own` is the rest. Contaminations change `own`:
heavy tails, drift over the order in which trials ran (AR(1); repeats are interleaved A B A' B'), and stragglers. All
have median 0 in the logarithm, so they do not change the truth of a ratio.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise of the logarithm of a time or rate, or of an accuracy."""

    seed: float = 0.03
    """Standard deviation of what all cells share."""
    own: float = 0.02
    """Standard deviation of what they do not."""
    tails: float = np.inf
    """Degrees of freedom of Student's t for `own`, scaled to the same standard deviation where there is one."""
    drift: float = 0.0
    """Correlation of `own` from trial to trial in the order of running."""
    straggling: float = 0.0
    """Share of the trials that something slowed down, symmetrically: ± five standard deviations."""
    spread: float = 0.0
    """Standard deviation of the logarithm of `own`'s deviation from cell to cell: cells that vary unlike."""
    process: float = 0.0
    """Standard deviation of the luck of a process, which times one cell …"""
    kept: bool = False
    """… with all of its seeds; else with one of them."""

    def draw(self, generator: np.random.Generator, sims: int, cells: int, seeds: int) -> np.ndarray:
        """Draw noise of shape (sims, cells, seeds)."""
        shape = (sims, seeds, cells)  # the order of running: all cells of a seed, then those of the next
        if np.isinf(self.tails):
            own = generator.standard_normal(shape)
        else:
            own = generator.standard_t(self.tails, shape)
            own /= np.sqrt(self.tails / (self.tails - 2)) if self.tails > 2 else 1.0
        if self.drift:
            flat = own.reshape(sims, -1)
            for place in range(1, flat.shape[1]):
                flat[:, place] = self.drift * flat[:, place - 1] + np.sqrt(1 - self.drift**2) * flat[:, place]
            own = flat.reshape(shape)
        if self.straggling:
            hit = generator.random(shape) < self.straggling
            own = own + hit * 5 * generator.choice([-1.0, 1.0], shape)
        own = own * np.exp(self.spread * generator.standard_normal((sims, 1, cells)))
        shared = self.seed * generator.standard_normal((sims, seeds, 1))
        luck = generator.standard_normal((sims, 1 if self.kept else seeds, cells)) if self.process else 0.0
        return np.swapaxes(shared + self.own * own + self.process * luck, 1, 2)


CLEAN = Noise()
CONTAMINATED = {
    "heavy tails (t, 3 degrees of freedom)": Noise(tails=3),
    "AR(1) drift, ρ = 0.6": Noise(drift=0.6),
    "10% stragglers at ± 5 sd": Noise(straggling=0.1),
    "cells vary unlike (sd × e^±0.7)": Noise(spread=0.7),
}
PROCESSES = {
    f"{luck:.1%}, {'one process for all seeds' if kept else 'a process for each seed'}": Noise(process=luck, kept=kept)
    for luck in (0.026, 0.1)
    for kept in (True, False)
}
"""Luck of processes as it was measured: on two CPU cores, and on GPUs that wait for launches (docs/numbers.md)."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The noise of the logarithm of a rate on a machine whose speed changes slowly during a sweep."""

    amplitude: float
    """The speed changes from −amplitude to +amplitude."""
    own: float
    """Standard deviation of what trials do not share."""
    wave: bool = False
    """Whether the speed goes up and down again once, instead of in one direction."""
    seed: float = 0.03
    """Standard deviation of what all cells of a seed share."""

    def draw(self, generator: np.random.Generator, at: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """Draw noise for trials of these seeds that are timed at these times, from 0 to 1."""
        shared = self.seed * generator.standard_normal(seeds.max() + 1)[seeds]
        shape = np.sin(2 * np.pi * at) if self.wave else 2 * at - 1
        return self.amplitude * shape + shared + self.own * generator.standard_normal(at.shape)


DRIFTS = {
    "none": Drift(amplitude=0.0, own=0.005),
    "+2%, trials ± 0.5%": Drift(amplitude=0.02, own=0.005),
    "-2%, trials ± 0.5%": Drift(amplitude=-0.02, own=0.005),
    "+0.5%, trials ± 0.13%": Drift(amplitude=0.005, own=0.0013),
    "-0.5%, trials ± 0.13%": Drift(amplitude=-0.005, own=0.0013),
    "2%, up and down, trials ± 0.5%": Drift(amplitude=0.02, own=0.005, wave=True),
}
"""Trials vary by about a quarter of the drift."""


def usl(gpus: np.ndarray, gamma: float, alpha: float, beta: float) -> np.ndarray:
    """Return throughput by the Universal Scalability Law."""
    return gamma * gpus / (1 + alpha * (gpus - 1) + beta * gpus * (gpus - 1))


_SLOWEST = {1: 0.0, 2: 0.5642, 4: 1.0294, 8: 1.4236, 16: 1.7660}
"""Expected maximum of normal values, by their number (Harter, "Expected values of normal order statistics", 1961)."""


def _slowest(gpus: np.ndarray) -> np.ndarray:
    return np.array([_SLOWEST[int(count)] for count in gpus])


LOSSES = {
    "Amdahl": lambda n, part: n - 1,
    "USL": lambda n, part: _mixed(n, part, lambda n: n - 1, lambda n: n * (n - 1)),
    "ring all-reduce (bandwidth, latency)": lambda n, part: _mixed(n, part, lambda n: (n - 1) / n, lambda n: n - 1),
    "ring all-reduce, fixed batch": lambda n, part: _mixed(n, part, lambda n: n - 1, lambda n: n * (n - 1)),
    "ring all-reduce, partly hidden": lambda n, part: np.maximum(0.0, 1.5 * (n - 1) / n - 0.75 * part),
    "log latency": lambda n, part: np.log2(n),
    "log latency, fixed batch": lambda n, part: n * np.log2(n),
    "stragglers": lambda n, part: _slowest(n),
    "stragglers and ring": lambda n, part: _mixed(n, part, _slowest, lambda n: (n - 1) / n),
    "NVLink between pairs": lambda n, part: np.where(n > 2, (n - 1) / n, 0.0),
    "contention from 2 to 4 GPUs": None,
}
"""How the loss of throughput grows with the GPUs and the part of the first of two causes. Contention is a largest
throughput, such as a loader's, or a least time for a step of a fixed batch; it is reached between 2 and 4 GPUs."""

COUNTS = np.array([1.0, 2.0, 4.0])
"""The GPU counts of which a loss is measured."""


def _mixed(gpus: np.ndarray, part: float, one, other) -> np.ndarray:
    four = np.array([4.0])
    return part * one(gpus) / one(four) + (1 - part) * other(gpus) / other(four)


def loss(truth: str, size: float, part: float, gpus: np.ndarray) -> np.ndarray:
    """Return the loss on these GPUs if it has this size on 4, with this part from the first cause."""
    growth = LOSSES[truth]
    if growth is None:
        return np.maximum(0.0, (1 + size) * gpus / 4 - 1)
    return size * growth(gpus, part) / growth(np.array([4.0]), part)


@dataclass(frozen=True, kw_only=True)
class World:
    """A sweep over GPUs × batches × rules: the truth of every cell, by row; row 0 is the baseline."""

    time: np.ndarray
    accuracy: np.ndarray
    batch: np.ndarray
    """The global one."""
    rule: np.ndarray

    @staticmethod
    def draw(generator: np.random.Generator) -> World:
        """Draw a world: throughput by the USL and a batch's economy; accuracy falls with the batch, faster or slower by
        rule.
        """
        alpha, beta = generator.uniform(0, 0.15), generator.uniform(0, 0.01)
        hunger, fall = generator.uniform(0.2, 0.8), generator.uniform(0.002, 0.02)
        cells = [(gpus, batch, rule) for gpus in (1, 2, 4) for batch in (32, 128, 512) for rule in (1.0, 0.3)]
        gpus, batch, rule = (np.array(column, dtype=float) for column in zip(*cells, strict=True))
        rate = usl(gpus, 1.0, alpha, beta) * (batch / 32) ** hunger
        accuracy = 0.95 - fall * rule * np.log2(gpus * batch / 32) ** 1.5 / 3
        return World(time=1 / rate, accuracy=accuracy, batch=gpus * batch, rule=rule)

    @staticmethod
    def unrelated(generator: np.random.Generator) -> World:
        """Return the same times in random order, so that accuracies of cells are unrelated."""
        related = World.draw(generator)
        lost = generator.uniform(0, 0.03, len(related.time))
        lost[0] = 0.0
        return replace(related, time=generator.permutation(related.time), accuracy=0.95 - lost)


GRIDS = {
    4: ((1, 2), (32, 128), 1),
    16: ((1, 2), (32, 64, 128, 256), 2),
    64: ((1, 2, 4, 8), (32, 64, 128, 256), 4),
    256: ((1, 2, 4, 8), (16, 32, 64, 128, 256, 512, 1024, 2048), 8),
}
"""GPUs, batches per GPU and number of rules of sweeps, by their number of cells."""

LAWS = ("one law", "unrelated", "all near the margin")
"""How accuracies depend on batch and rule."""


def of_law(law: str, cells: int, generator: np.random.Generator) -> World:
    """Draw a world with this number of cells; row 0, the baseline, has accuracy 0.9."""
    counts, batches, rules = GRIDS[cells]
    grid = [(gpus, batch, rule) for gpus in counts for batch in batches for rule in range(rules)]
    gpus, batch, rule = np.array(grid, dtype=float).T
    number = rule.astype(int)
    doublings = np.log2(gpus * batch / (gpus * batch).min())
    if law == "unrelated":
        lost = generator.uniform(0, generator.choice([0.02, 0.03, 0.05]), len(grid))
    elif law == "all near the margin":
        lost = 0.01 + generator.normal(0, generator.uniform(0.002, 0.006), len(grid))
    else:
        slope = np.append(1.0, generator.uniform(0.1, 1.5, rules))[number] * generator.uniform(0.0005, 0.006)
        lost = slope * doublings ** generator.uniform(1, 1.5)
    lost[0] = 0.0
    rate = gpus / (1 + generator.uniform(0, 0.15) * (gpus - 1)) * batch ** generator.uniform(0.1, 0.8)
    time = np.exp(generator.normal(0, 0.02, len(grid))) / rate
    return World(time=time, accuracy=0.9 - lost, batch=gpus * batch, rule=rule)


OTHER_LAWS = ("cliff", "a best batch by rule", "digits")
"""Laws of accuracies that pooling does not expect."""

_DIGITS = Path(__file__).parents[2] / "docs" / "results" / "batch_scaling" / "accuracies.csv"


def of_other_law(law: str, seeds: int, generator: np.random.Generator) -> tuple[World, np.ndarray, float]:
    """Draw a world of 16 cells, its accuracies by cell and seed, and the number of samples that they are shares of.

    Seeds vary more beyond the cliff or far from the best batch, and more in some cells than in others. The digits'
    accuracies are kept ones, of 30 seeds on 144 samples; the truth is their mean.
    """
    world = of_law("one law", 16, generator)
    if law == "digits":
        kept = np.loadtxt(_DIGITS, delimiter=",", skiprows=1, usecols=3).reshape(18, 30)
        rows = np.append(0, 1 + np.sort(generator.choice(17, 15, replace=False)))
        batch = 32.0 * 2 ** (rows // 3)
        time = np.exp(generator.normal(0, 0.02, 16)) / batch ** generator.uniform(0.1, 0.8)
        world = World(time=time, accuracy=kept[rows].mean(axis=1), batch=batch, rule=rows % 3)
        return world, kept[rows][:, generator.choice(30, seeds, replace=False)], 144
    doublings, rule = np.log2(world.batch / world.batch.min()), world.rule.astype(int)
    if law == "cliff":
        far = np.maximum(0.0, doublings - generator.uniform(0, doublings.max() + 1, 2)[rule])
    else:
        far = np.abs(doublings - generator.uniform(0, doublings.max(), 2)[rule])
    lost = far * generator.uniform(0.003, 0.03)
    unlike = generator.choice([0.001, 0.003, 0.006]) * (1 + far) * np.exp(0.5 * generator.standard_normal(16))
    samples = generator.choice([500, 2000, 10_000])
    true = np.clip(0.9 - lost[:, None] + unlike[:, None] * generator.standard_normal((16, seeds)), 0, 1)
    return replace(world, accuracy=0.9 - lost), generator.binomial(samples, true) / samples, samples
