"""Measure how often the recommendation is right on grids of the digits whose truth is known.

    python -m benchmarks.choice_drawn docs/results/batch_scaling/choice_drawn.json

A grid is `sweep=batch_scaling` on gpus=[1,2]. Its accuracies are drawn from thirty seeds (`digits.py`), its times from
the kept full grid; rules share them. The truth is the mean over all thirty seeds and over all times of a
shape. `told` is the stated probability. `regret` is how far the chosen cell's true time is above the best cell truly
within the margin; `short` is how far its accuracy is below the baseline's. Other ways to choose are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.digits import KEPT, accuracies_of_thirty_seeds
from benchmarks.figures import machine, tell
from orchestrator.decision.cell_estimates import Measurements
from orchestrator.decision.choice import Choice, choose
from orchestrator.decision.thresholds import TIE
from orchestrator.statistics.pooling import Likeness
from orchestrator.store.history import History
from orchestrator.store.journal import replay

RULES = 3
"""Of each shape."""

DRAWS = 2_000
"""Of each sweep, where a report takes 20,000: over many sweeps, what a draw leaves to chance averages out."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The true values of the cells; rows are cells."""

    accuracy: np.ndarray
    """A column for each of the thirty seeds."""
    times: np.ndarray
    """A column for each timed trial of the cell's shape, in seconds."""
    likeness: Likeness
    baseline: int

    def drawn(self, seeds: int, margin: float, chance: np.random.Generator) -> Measurements:
        """Draw the results of a sweep with this number of seeds."""
        columns = chance.choice(self.accuracy.shape[1], seeds, replace=False)
        # A sweep times one of the rules for all.
        timed = np.repeat(chance.integers(self.times.shape[1], size=(len(self.times) // RULES, seeds)), RULES, axis=0)
        return Measurements(
            objective=np.take_along_axis(self.times, timed, axis=1),
            accuracy=self.accuracy[:, columns],
            baseline=self.baseline,
            margin=margin,
            likeness=self.likeness,
            timing_group=np.arange(len(self.times)) // RULES,
        )

    def figures(self, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """Return each cell's regret, and how far its accuracy is below the baseline's."""
        accuracy, level = self.accuracy.mean(axis=1), np.log(self.times).mean(axis=1)
        short = accuracy[self.baseline] - accuracy
        return np.expm1(level - level[short <= margin].min()), short


def truth() -> Truth:
    """Compute the truth from the kept results."""
    times: dict[tuple[int, int], list[float]] = {}
    for end in History(replay(KEPT / "full" / "journal.jsonl").records).all_ends.values():
        seconds = end.metrics["samples"] / end.metrics["samples_per_s"]
        times.setdefault((int(end.gpus), end.device_batch_size), []).append(seconds)
    rules = ("none", "linear", "sqrt")
    cells = [(gpus, batch, rule) for gpus, batch in sorted(times) for rule in rules]
    accuracies = accuracies_of_thirty_seeds()
    return Truth(
        accuracy=np.array([accuracies[gpus * batch, rule] for gpus, batch, rule in cells]),
        times=np.array([times[gpus, batch] for gpus, batch, _ in cells]),
        likeness=Likeness(
            batch=np.array([float(gpus * batch) for gpus, batch, _ in cells]),
            recipe=np.array([rules.index(rule) for *_, rule in cells]),
        ),
        baseline=cells.index((1, 32, "none")),
    )


def likeliest(choice: Choice) -> int:
    """Return the most probable of the eligible cells within TIE of the least."""
    level = np.where(choice.keeps_accuracy, choice.log_objective.point, np.inf)
    return int(np.where(level <= level.min() + np.log1p(TIE), choice.p_best, -1.0).argmax())


def chosen(measurements: Measurements) -> Mapping[str, tuple[int, Choice]]:
    """Return the cell that this way of choosing selects."""
    pooled, alone = (
        choose(likened, np.random.default_rng(0), DRAWS)
        for likened in (measurements, replace(measurements, likeness=None))
    )
    assert pooled.favourite is not None and alone.favourite is not None  # the baseline is within its own margin
    return {
        "as it is": (pooled.favourite, pooled),
        "by each cell's mean alone": (alone.favourite, alone),
        "of those within 2% of the least the likeliest to be best": (likeliest(pooled), pooled),
    }


def summed_up(rows: np.ndarray) -> dict[str, float]:
    regret, short, within, p_best, p_within = rows.T
    best = (within > 0) & (regret <= TIE)
    return {
        "best": float(best.mean()),
        "best_told": float(p_best.mean()),
        "within": float(within.mean()),
        "within_told": float(p_within.mean()),
        "mean_regret": float(regret[within > 0].mean()),
        "mean_short": float(short.mean()),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("json", type=Path, help="where the figures go")
    arguments.add_argument("--grids", type=int, default=1000)
    given = arguments.parse_args()
    known = truth()
    figures_of: dict[str, Any] = {}
    for margin in (0.01, 0.02):
        regret, short = known.figures(margin)
        for seeds in (3, 5, 10):
            chance, rows = np.random.default_rng(2026), {}
            for _ in range(given.grids):
                for way, (row, choice) in chosen(known.drawn(seeds, margin, chance)).items():
                    told = (choice.p_best[row], choice.p_within[row])
                    rows.setdefault(way, []).append((regret[row], short[row], short[row] <= margin, *told))
            figures_of[f"margin {margin:g}, {seeds} seeds"] = {
                way: summed_up(np.array(outcomes)) for way, outcomes in rows.items()
            }
    tell({**machine(), "grids": given.grids, **figures_of}, given.json)


if __name__ == "__main__":
    main()
