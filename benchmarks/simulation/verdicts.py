"""The truth of CLEAR and of its probabilities in worlds that violate what the estimators assume.

python -m benchmarks.simulation.verdicts 300              # this number of sweeps of each world
python -m benchmarks.simulation.verdicts 900 skewed hard  # only these worlds
python -m benchmarks.simulation.verdicts 900 hard@5 hard+ # with five seeds; with a cell that is plainly the best
python -m benchmarks.simulation.verdicts 300 hard@settle  # after `mode=settle`

Prints a row for each world. *Right* means: truly within the margin, and within TIE of the best cell that is. *Told* is
the mean probability that the chosen cell misses the margin, *seen* the share of chosen cells that do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.simulation.worlds import CLEAN, World, of_law
from benchmarks.simulation.yardstick import DRAWS, MARGIN, MOST_SEEDS, contenders_of, measured
from orchestrator.decision.cell_estimates import Measurements, Restarts
from orchestrator.decision.choice import Choice, choose
from orchestrator.decision.more_seeds import further_seeds
from orchestrator.decision.thresholds import SURE, TIE

CELLS, SEEDS = 16, 3


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A simulated sweep: its truth, and what was measured."""

    world: World
    measurements: Measurements

    @property
    def is_within(self) -> np.ndarray:
        """Which cells are truly within the margin."""
        return self.world.accuracy >= self.world.accuracy[0] - MARGIN - 1e-9

    @property
    def slower(self) -> np.ndarray:
        """How much slower each cell truly is than the best one within the margin, as a fraction."""
        return self.world.time / self.world.time[self.is_within].min() - 1

    def is_right(self, row: int) -> bool:
        """Return whether a cell is truly within the margin, and within TIE of the best cell that is."""
        return bool(self.is_within[row] and self.slower[row] <= TIE)


def _sweep(world: World, accuracy: np.ndarray, generator: np.random.Generator, samples: float = np.nan) -> Sweep:
    objective = world.time[:, None] * np.exp(CLEAN.draw(generator, 1, *accuracy.shape)[0])
    return Sweep(world=world, measurements=measured(world, objective, accuracy, samples))


def _seeds(spread: np.ndarray | float, values: np.ndarray, shared: float = 0.0) -> np.ndarray:
    """Scale standard values of shape (cells, seeds), and add a seed's effect on all cells."""
    return np.broadcast_to(np.asarray(spread), (len(values),))[:, None] * values + shared


def clean(generator: np.random.Generator, seeds: int) -> Sweep:
    world = of_law("one law", CELLS, generator)
    noise = _seeds(generator.choice([0.001, 0.0025, 0.005]), generator.standard_normal((CELLS, seeds)))
    return _sweep(world, world.accuracy[:, None] + noise + 0.003 * generator.standard_normal(seeds), generator)


def spread_grows_with_batch(generator: np.random.Generator, seeds: int) -> Sweep:
    """The standard deviation doubles with two or four doublings of the batch."""
    world = of_law("one law", CELLS, generator)
    doublings = np.log2(world.batch / world.batch.min())
    spread = generator.choice([0.001, 0.002]) * 2 ** (doublings * generator.choice([0.5, 1.0]))
    return _sweep(world, world.accuracy[:, None] + _seeds(spread, generator.standard_normal((CELLS, seeds))), generator)


def near_the_margin(generator: np.random.Generator, seeds: int) -> Sweep:
    world = of_law("all near the margin", CELLS, generator)
    noise = _seeds(generator.choice([0.0025, 0.005, 0.01]), generator.standard_normal((CELLS, seeds)))
    return _sweep(world, world.accuracy[:, None] + noise, generator)


def few_images(generator: np.random.Generator, seeds: int) -> Sweep:
    """Accuracies are shares of 100 validation images, other ones for each seed."""
    world = of_law("one law", CELLS, generator)
    return _sweep(world, generator.binomial(100, world.accuracy[:, None], (CELLS, seeds)) / 100, generator, 100)


def same_images(generator: np.random.Generator, seeds: int) -> Sweep:
    """Accuracies are shares of the same 100 validation images, which differ in difficulty."""
    world = of_law("one law", CELLS, generator)
    ease = generator.beta(0.9 * 2, 0.1 * 2, 100)  # mean 0.9
    right = np.clip(ease + (world.accuracy - 0.9)[:, None], 0, 1)
    shares = (generator.random((seeds, CELLS, 100)) < right).mean(axis=2).T
    return _sweep(world, shares, generator, 100)


def skewed(generator: np.random.Generator, seeds: int) -> Sweep:
    """Accuracies have a long tail downwards, as of exponential values."""
    world = of_law("one law", CELLS, generator)
    tail = 1 - generator.exponential(1.0, (CELLS, seeds))
    return _sweep(world, world.accuracy[:, None] + generator.choice([0.0025, 0.005, 0.01]) * tail, generator)


def hard(generator: np.random.Generator, seeds: int) -> Sweep:
    """Heavy tails, cells that vary unlike, losses near the margin."""
    world = of_law(generator.choice(["all near the margin", "unrelated"]), CELLS, generator)
    spread = generator.choice([0.0025, 0.005]) * np.exp(0.7 * generator.standard_normal(CELLS))
    values = generator.standard_t(3, (CELLS, seeds)) / np.sqrt(3)
    return _sweep(world, world.accuracy[:, None] + _seeds(spread, values), generator)


def spread_grows_with_loss(generator: np.random.Generator, seeds: int) -> Sweep:
    """Cells far below the baseline vary by more: by a part of the loss, beside a small common spread."""
    world = of_law("one law", CELLS, generator)
    lost = 3 * (world.accuracy[0] - world.accuracy)
    world = replace(world, accuracy=world.accuracy[0] - lost)
    values = _seeds(0.001 + 0.3 * lost, generator.standard_normal((CELLS, seeds)))
    return _sweep(world, world.accuracy[:, None] + values, generator)


def large_batches_collapse(generator: np.random.Generator, seeds: int) -> Sweep:
    world = of_law("one law", CELLS, generator)
    return _collapsing(world, world.batch >= np.quantile(world.batch, 0.6), generator, seeds)


def fastest_collapses(generator: np.random.Generator, seeds: int) -> Sweep:
    world = of_law("one law", CELLS, generator)
    return _collapsing(world, np.arange(CELLS) == world.time.argmin(), generator, seeds)


def _collapsing(world: World, cells: np.ndarray, generator: np.random.Generator, seeds: int) -> Sweep:
    """Return a sweep in which a third of the seeds of these cells lose 3.5 margins; nothing else loses any accuracy."""
    accuracy = np.full((CELLS, seeds), 0.9) + 0.002 * generator.standard_normal((CELLS, seeds))
    accuracy -= 3.5 * MARGIN * (cells[:, None] & (generator.random((CELLS, seeds)) < 1 / 3))
    world = replace(world, accuracy=0.9 - np.where(cells, 3.5 * MARGIN / 3, 0.0))
    return _sweep(world, accuracy, generator)


def poor_baseline(generator: np.random.Generator, seeds: int) -> Sweep:
    """The baseline is 4 to 8 margins below the best cell, whose accuracy falls with the batch."""
    world = of_law("one law", CELLS, generator)
    world = replace(world, accuracy=np.append(0.9, 0.9 + generator.uniform(0, 0.01 * generator.uniform(4, 8), 15)))
    noise = _seeds(0.002, generator.standard_normal((CELLS, seeds)))
    return _sweep(world, world.accuracy[:, None] + noise, generator)


def missed_targets(generator: np.random.Generator, seeds: int) -> Sweep:
    """The objective is the time to a target, which 60 to 80% of the seeds of fast cells reach in their budget."""
    world = of_law("one law", CELLS, generator)
    fast = world.time <= np.quantile(world.time, 0.5)
    share = np.where(fast, generator.uniform(0.6, 0.8, CELLS), 1.0)
    budget = 2.0  # times as long as a seed that reaches the target
    reached = generator.random((CELLS, seeds)) < share[:, None]
    hits = reached.sum(axis=1)
    own = world.time[:, None] * np.exp(CLEAN.draw(generator, 1, CELLS, seeds)[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        restarted = own + (budget * own * ~reached).sum(axis=1, keepdims=True) / hits[:, None]
    accuracy = 0.9 + 0.002 * generator.standard_normal((CELLS, seeds))
    measurements = measured(world, np.where(reached, restarted, np.nan), accuracy)
    missed = np.full(CELLS, budget)
    measurements = replace(measurements, restarts=Restarts(hits=hits, n=np.full(CELLS, seeds), missed=missed))
    truth = replace(world, time=world.time * (1 + budget * (1 - share) / share), accuracy=np.full(CELLS, 0.9))
    return Sweep(world=truth, measurements=measurements)


WORLDS: dict[str, Callable[[np.random.Generator, int], Sweep]] = {
    "clean": clean,
    "spread grows with batch": spread_grows_with_batch,
    "near the margin": near_the_margin,
    "100 images": few_images,
    "100 shared images": same_images,
    "skewed": skewed,
    "hard": hard,
    "spread grows with loss": spread_grows_with_loss,
    "large batches collapse": large_batches_collapse,
    "one cell collapses": fastest_collapses,
    "poor baseline": poor_baseline,
    "missed targets": missed_targets,
}


def is_clear(choice: Choice) -> bool:
    """Return whether the verdict would be CLEAR; the report's other conditions hold in every simulated sweep."""
    chosen, lost = choice.favourite, choice.measurements.collapses
    if chosen is None or lost.hits[chosen] or lost.hits[choice.measurements.baseline or 0]:
        return False
    if choice.below_best > MARGIN or 1 / choice.measurements.samples > MARGIN / 2:
        return False
    return choice.is_sure(float(choice.p_best[chosen])) and choice.is_sure(float(choice.p_within[chosen]))


STUDENT = {3: 4.303, 5: 2.776}
"""97.5% quantile of Student's t, by the number of seeds."""

INTERVALS = 3
"""A plainly best cell is above the margin by this multiple of the half width of its 95% interval."""


def with_plain_best(sweep: Sweep) -> Sweep:
    """Return the sweep with a fastest cell that is 30% faster and keeps its accuracy, plainly.

    Its accuracy is above the baseline by a margin, and above the limit by INTERVALS of its measured intervals.
    """
    truth, measurements = sweep.world, sweep.measurements
    best = np.arange(len(truth.time)) == truth.time.argmin()
    seeds = measurements.accuracy.shape[1]
    half = STUDENT[seeds] * measurements.accuracy[best].std(ddof=1) / np.sqrt(seeds)
    gain = np.where(best, truth.accuracy[0] + max(MARGIN, INTERVALS * half - MARGIN) - truth.accuracy, 0.0)
    world = replace(truth, time=truth.time * np.where(best, 0.7, 1.0), accuracy=truth.accuracy + gain)
    accuracy = measurements.accuracy + gain[:, None]
    objective = measurements.objective * np.where(best, 0.7, 1.0)[:, None]
    return Sweep(world=world, measurements=measured(world, objective, accuracy, measurements.samples))


def rates(world: str, sims: int, seeds: int = SEEDS) -> dict[str, float | None]:
    """Return the shares of clear and of right choices, and of told and seen misses; None where there was none."""
    return shares(outcomes(world, range(sims), seeds))


def outcomes(world: str, numbers: Iterable[int], seeds: int = SEEDS) -> list[list[float]]:
    """Return what was said and what is true in each of these sweeps, which `shares` counts."""
    rows = []
    for number in numbers:
        generator = np.random.default_rng([number, seeds, *world.encode()])
        sweep = WORLDS[world.removesuffix("+")](generator, seeds)
        if world.endswith("+"):
            sweep = with_plain_best(sweep)
        choice = choose(sweep.measurements, generator, DRAWS)
        chosen = choice.favourite
        if chosen is None:
            rows.append([np.nan] * 7)
            continue
        is_missed = not sweep.is_within[chosen]
        below_best = sweep.world.accuracy.max() - sweep.world.accuracy[chosen] > MARGIN
        p = choice.p_within[chosen]
        truth = (sweep.is_right(chosen), is_missed, sweep.slower[chosen], below_best)
        rows.append([is_clear(choice), 1 - p, p >= SURE, *truth])
    return rows


def shares(rows: Sequence[Sequence[float]]) -> dict[str, float | None]:
    """Return the shares of these outcomes."""
    clear, told, sure, right, seen, slower, below_best = np.array(rows, dtype=float).T
    is_within = seen == 0
    return {
        "sweeps": len(rows),
        "clear": float(np.nanmean(clear)),
        "right where clear": _mean(right[clear == 1]),
        "within where P(within) ≥ 90%": _mean(1 - seen[sure == 1]),
        "misses, told": float(np.nanmean(told)),
        "misses, seen": float(np.nanmean(seen)),
        "right": float(np.nanmean(right)),
        "90th percentile of the regret": float(np.quantile(slower[is_within], 0.9)) if is_within.any() else None,
        "clear, but a margin below the best": float(np.nanmean(clear * below_best)),
    }


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def settled(world: str, sims: int, rounds: int = 6) -> dict[str, float | None]:
    """Return the share of CLEAR, and of right ones, after `mode=settle`, which adds seeds until CLEAR."""
    rows = []
    for number in range(sims):
        generator = np.random.default_rng([number, *world.encode()])
        sweep = WORLDS[world](generator, MOST_SEEDS)
        measurements, ran = sweep.measurements, np.full(CELLS, SEEDS)
        for _ in range(rounds):
            left_out = np.arange(MOST_SEEDS) >= ran[:, None]
            objective, accuracy = (
                np.where(left_out, np.nan, values)[:, : ran.max()]
                for values in (measurements.objective, measurements.accuracy)
            )
            measured_so_far = measured(sweep.world, objective, accuracy, measurements.samples)
            choice = choose(measured_so_far, generator, DRAWS // 2)
            clear = is_clear(choice)
            if clear or choice.favourite is None:
                break
            asked, needed = further_seeds(contenders_of(choice, ran), choice.favourite)
            if not asked:
                break
            ran[asked] = min(needed, MOST_SEEDS)
        right = choice.favourite is not None and sweep.is_right(choice.favourite)
        rows.append((clear, right, ran.mean()))
    clear, right, n = np.array(rows, dtype=float).T
    return {
        "sweeps": sims,
        "clear": float(clear.mean()),
        "right where clear": _mean(right[clear == 1]),
        "seeds, in hundreds": n.mean() / 100,
    }


def _written(value: float | None) -> str:
    if isinstance(value, int):
        return str(value)
    return "" if value is None else f"{100 * value:.0f}"


def main() -> None:
    sims, names = int(sys.argv[1]), sys.argv[2:] or list(WORLDS)
    has_head = False
    for name in names:
        world, _, seeds = name.partition("@")
        shares = settled(world, sims) if seeds == "settle" else rates(world, sims, int(seeds or SEEDS))
        if not has_head:
            print(f"| world | {' | '.join(shares)} |\n{'|---' * (1 + len(shares))}|")
            has_head = True
        cells = (_written(value) for value in shares.values())
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
