"""Runs every simulation in full and writes docs/results/statistics.{json,md}: python -m tests.simulation.report

python -m tests.simulation.report 2000 300 recommendation rules     # so many simulations, of these parts again
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.random import Generator

from tests.simulation import yardstick
from tests.simulation.worlds import CLEAN, CONTAMINATED, Noise

SEEDS = (3, 5, 10)
MARGIN = 0.03


def parts(sims: int, few: int) -> dict[str, Callable[[Generator], dict]]:
    """By name what each part simulates: `sims` times the cheap estimators, `few` times the dear ones."""
    noises = {"clean": CLEAN, **CONTAMINATED}
    two = {"clean": CLEAN, "heavy tails": next(iter(CONTAMINATED.values()))}

    def by_seeds(noises: dict[str, Noise], seeds: Sequence[int], rate: Callable[[Noise, int], object]) -> dict:
        return {told: {str(n): rate(noise, n) for n in seeds} for told, noise in noises.items()}

    return {
        "interval coverage": lambda g: by_seeds(
            noises, SEEDS, lambda noise, n: yardstick.interval_coverage(noise, n, sims, g)
        ),
        "shrunken coverage": lambda g: by_seeds(
            noises, (2, *SEEDS), lambda noise, n: yardstick.shrunken_coverage(noise, n, few // 4, g)
        ),
        "median time coverage": lambda g: {
            f"{share:.0%} unreached": {str(n): yardstick.median_coverage(share, n, few, g) for n in SEEDS}
            for share in (0.0, 0.1, 0.3)
        },
        "false equivalence": lambda g: by_seeds(
            noises, SEEDS, lambda noise, n: yardstick.false_equivalence(noise, n, 30 * sims, g, MARGIN)
        ),
        "recommendation": lambda g: by_seeds(two, SEEDS, lambda noise, n: yardstick.recommendations(noise, n, few, g)),
        "followed": lambda g: {str(n): yardstick.followed(CLEAN, n, few, g) for n in SEEDS[:2]},
        "rules": lambda g: by_rule({str(n): yardstick.rules(CLEAN, n, few, g) for n in SEEDS}),
        "usl coverage": lambda g: by_seeds(two, SEEDS, lambda noise, n: yardstick.usl_coverage(noise, n, few, g)),
    }


def by_rule(found: dict) -> dict:
    """From {n: {rule: rates}} to {rule: {n: rates}}."""
    return {rule: {n: rates[rule] for n, rates in found.items()} for rule in next(iter(found.values()))}


def table(head: list[str], rows: list[list]) -> str:
    def told(value) -> str:
        return f"{value:.1%}" if isinstance(value, float) else str(value)

    return "\n".join(f"| {' | '.join(map(told, row))} |" for row in [head, ["---"] * len(head), *rows])


def rows(found: dict) -> list[list]:
    """A row for each noise and number of seeds."""
    return [[told, n, *rates.values()] for told, by_n in found.items() for n, rates in by_n.items()]


def names(found: dict) -> list[str]:
    return list(next(iter(next(iter(found.values())).values())))


def section(title: str, about: str, found: dict, first: str = "noise") -> list[str]:
    if isinstance(next(iter(next(iter(found.values())).values())), dict):
        body = table([first, "n", *names(found)], rows(found))
    else:
        body = table(
            [first, *(f"n = {n}" for n in next(iter(found.values())))],
            [[told, *rates.values()] for told, rates in found.items()],
        )
    return [f"## {title}", *([about] if about else []), body]


def markdown(found: dict) -> str:
    counts = found["simulations"]
    many, few = counts["intervals, equivalence"], counts["the others"]
    parts = [
        "# Statistics against simulated sweeps",
        "Written by `python -m tests.simulation.report`. The simulator (`tests/simulation/worlds.py`) shares no code"
        " with the estimators: log-normal times with what a seed does to all cells (sd 3%) and what is left (2%),"
        " contaminated as named. n is the number of seeds.",
        *section(
            f"Coverage of the 95% intervals ({many} simulations, ± 1% by chance)",
            "Student's t below 10 seeds, the expanded percentile bootstrap from there on. Drift over the order of"
            " running spoils what is not paired by seed, hence interleaved repeats and paired comparisons.",
            found["interval coverage"],
        ),
        *section(
            f"Coverage with variances shrunk over 18 cells ({few // 4} sweeps of 17 comparisons)",
            "The variances behind the recommendation's probabilities.",
            found["shrunken coverage"],
        ),
        *section(
            f"Median time to the target, unreached ones censored ({few} simulations)",
            "Coverage where there is an interval: with fewer than two reached times there is none.",
            found["median time coverage"],
            "unreached",
        ),
        *section(
            f"A difference that is exactly the margin, called equivalent ({30 * many} simulations)",
            f"At a margin of {MARGIN}, which is about one standard deviation of a pair's difference.",
            found["false equivalence"],
        ),
        *section(
            f"Recommendation ({counts.get('recommendation', few)} random sweeps of 18 cells)",
            "Regret: how much longer the chosen cell truly takes than the best cell truly within the margin, of the"
            " choices that truly are within it. Its tail is of sweeps in which a faster cell's accuracy lies so near"
            " the margin that these seeds do not tell on which side; the report tells how far behind the best the"
            " choice may be (95%).",
            found["recommendation"],
        ),
        *section(
            f"Where the seeds are run that it asks for ({counts.get('followed', few)} clean sweeps for each n)",
            "The chosen cell, its baseline and its rivals have as many seeds as the report's command gives them, and"
            " the choice is made again. Where 30 seeds would not settle it, it asks for none, and says so.",
            {f"begun with {n} seeds": rates for n, rates in found["followed"].items()},
            "",
        ),
        *section(
            f"Other rules of choosing ({counts.get('rules', few)} clean sweeps for each n)",
            "They exchange misses of the margin for regret: none has less of both, at every n, than the"
            " rule that is used (p ≥ 0.5, and of cells within 2% of the least time the most accurate).",
            found["rules"],
            "rule",
        ),
        *section(
            f"Universal Scalability Law on 1, 2, 4, 8 GPUs: coverage ({few} simulations)", "", found["usl coverage"]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    folder = Path(__file__).parents[2] / "docs" / "results"
    sims, few = (int(argument) for argument in sys.argv[1:3]) if len(sys.argv) > 2 else (2000, 300)
    known = parts(sims, few)
    asked = sys.argv[3:] or list(known)
    found = json.loads((folder / "statistics.json").read_text()) if sys.argv[3:] else {}
    if not sys.argv[3:]:
        found["simulations"] = {"intervals, equivalence": sims, "the others": few}
    for name in asked:
        found[name] = known[name](np.random.default_rng(2026))
        if sys.argv[3:]:
            found["simulations"][name] = few
        if all(part in found for part in known):
            (folder / "statistics.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
            (folder / "statistics.md").write_text(markdown(found))


if __name__ == "__main__":
    main()
