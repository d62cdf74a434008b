"""Runs every simulation in full and writes docs/results/statistics.md and .json: python -m benchmarks.simulation.report

python -m benchmarks.simulation.report 10000 1000 recommendation rules  # these numbers of simulations, only these parts
python -m benchmarks.simulation.report --jobs 16                        # in 16 processes, with the same results

Prints each condition with its seconds. The tables have the Monte Carlo error: ± is two standard errors, for a share of
N simulations at most 1/√N.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from numpy.random import Generator

from benchmarks.simulation import margins, verdicts, yardstick
from benchmarks.simulation.worlds import (
    CLEAN,
    CONTAMINATED,
    DRIFTS,
    GRIDS,
    LAWS,
    LOSSES,
    OTHER_LAWS,
    PROCESSES,
    Noise,
    World,
)

SEEDS = (3, 5, 10)
FEW_SEEDS = (2, 3, 5)
MARGIN = 0.03

VERDICTS = (
    *((world, 3) for world in verdicts.WORLDS),
    *(("large batches collapse", 5), ("one cell collapses", 5), ("one cell collapses", 8)),
    *((f"{world}+", 3) for world in ("clean", "skewed", "spread grows with batch")),
)
"""Worlds with their numbers of seeds; + is with a cell that is plainly the best."""

Conditions = dict[tuple[str, ...], Callable[[Generator], object]]
"""The simulations of a part, by their place in its results."""


def parts(sims: int, few: int) -> dict[str, Conditions]:
    """Return the conditions of each part: `sims` simulations for the cheap estimators, `few` for the expensive ones."""
    noises = {"clean": CLEAN, **CONTAMINATED}
    two = {"clean": CLEAN, "heavy tails": next(iter(CONTAMINATED.values()))}

    def by_seeds(
        cases: dict[str, object], seeds: Sequence[int], sims: int, rate: Callable[..., object], *more: object
    ) -> Conditions:
        return {
            (told, str(n)): lambda g, case=case, n=n: rate(case, n, sims, g, *more)
            for told, case in cases.items()
            for n in seeds
        }

    def by_n(seeds: Sequence[int], rate: Callable[..., object], sims: int = few) -> Conditions:
        return {(str(n),): lambda g, n=n: rate(CLEAN, n, sims, g) for n in seeds}

    return {
        "interval coverage": by_seeds(noises, SEEDS, sims, yardstick.interval_coverage),
        "accuracy coverage": {
            (f"{p:g}", str(samples)): lambda g, p=p, samples=samples: yardstick.accuracy_coverage(p, samples, sims, g)
            for p in (0.9, 0.97, 0.99, 0.999)
            for samples in (300, 1000, 10_000)
        },
        "coverage by process": by_seeds(PROCESSES, FEW_SEEDS, sims, yardstick.speedup_coverage),
        "coverage under drift": by_seeds(DRIFTS, (2, *SEEDS), few, yardstick.coverage_in_order),
        "shrunken coverage": {
            (f"{told}, {cells} cells", str(n)): lambda g, noise=noise, cells=cells, n=n: yardstick.shrunken_coverage(
                noise, n, 18 * few // cells, g, cells
            )
            for told, noise in noises.items()
            for cells in (4, 18)
            for n in (2, *SEEDS)
        },
        "false equivalence": by_seeds(noises, SEEDS, 30 * sims, yardstick.false_equivalence, MARGIN),
        "recommendation": by_seeds(two, SEEDS, few, yardstick.recommendations)
        | by_seeds({"clean, accuracies unrelated": CLEAN}, SEEDS, few, yardstick.recommendations, World.unrelated),
        "safe and fast": {
            (f"{law}, {cells} cells", str(n)): lambda g, law=law, cells=cells, n=n: margins.safe_and_fast(
                law, cells, n, int(few * margins.SWEEPS[cells]), g
            )
            for law, cells in [*product(LAWS, GRIDS), *product(OTHER_LAWS, [16])]
            for n in (1, *FEW_SEEDS)
        },
        "verdicts": {
            (world, str(n)): lambda g, world=world, n=n: verdicts.rates(world, few, n) for world, n in VERDICTS
        },
        "settled": {
            (world, "3"): lambda g, world=world: verdicts.settled(world, few // 4)
            for world in ("near the margin", "hard")
        },
        "ties": {
            (f"trials ± {own:.1%}", "3"): lambda g, own=own: yardstick.hours_of_ties(Noise(own=own), 3, few, g)
            for own in (0.005, 0.01, 0.02)
        },
        "critical batches": by_seeds(
            {f"± {spread:g} margins": spread for spread in (0.1, 0.3, 1.0)}, FEW_SEEDS, few, yardstick.critical_batches
        ),
        "collapses": by_n(SEEDS, yardstick.collapses),
        "slow seeds": by_n(SEEDS, yardstick.slow_seeds, few // 2),
        "followed": by_n(SEEDS[:2], yardstick.followed),
        "rules": by_n(SEEDS, yardstick.rules),
        "extrapolation": {
            (truth, str(n)): lambda g, truth=truth, n=n: yardstick.extrapolation_coverage(truth, CLEAN, n, few, g)
            for truth in LOSSES
            for n in SEEDS
        },
        "comparison": {
            (f"{told}, {cells} cells", str(n)): lambda g, noise=noise, cells=cells, n=n: yardstick.marked_by_compare(
                noise, n, few, g, cells
            )
            for told, noise in {"clean": CLEAN, **PROCESSES}.items()
            for cells in (4, 18)
            for n in SEEDS
        },
        "claims": by_seeds({str(claims): claims for claims in (2, 5, 12)}, SEEDS, few, yardstick.false_verdicts),
    }


def simulated(sims: int, few: int, part: str, place: tuple[str, ...]) -> tuple[object, float]:
    """Return the result of one condition and its seconds; its generator depends on nothing but its names."""
    began = time.perf_counter()
    generator = np.random.default_rng(list("/".join((part, *place)).encode()))
    return parts(sims, few)[part][place](generator), time.perf_counter() - began


def nested(results: dict[tuple[str, ...], object]) -> dict:
    """Turn {(key, further key): value} into {key: {further key: value}}."""
    tree: dict = {}
    for (*above, last), value in results.items():
        level = tree
        for key in above:
            level = level.setdefault(key, {})
        level[last] = value
    return tree


def by_rule(rates_by_n: dict) -> dict:
    """Turn {n: {rule: rates}} into {rule: {n: rates}}."""
    return {rule: {n: rates[rule] for n, rates in rates_by_n.items()} for rule in next(iter(rates_by_n.values()))}


def table(head: list[str], rows: list[list]) -> str:
    def told(value) -> str:
        return "" if value is None else f"{value:.1%}" if isinstance(value, float) else str(value)

    return "\n".join(f"| {' | '.join(map(told, row))} |" for row in [head, ["---"] * len(head), *rows])


def rows(rates_by_noise: dict) -> list[list]:
    """Return one row for each noise and number of seeds."""
    return [[told, n, *rates.values()] for told, by_n in rates_by_noise.items() for n, rates in by_n.items()]


def names(rates_by_noise: dict) -> list[str]:
    return list(next(iter(next(iter(rates_by_noise.values())).values())))


def section(title: str, about: str, rates_by_noise: dict, first: str = "noise") -> list[str]:
    if isinstance(next(iter(next(iter(rates_by_noise.values())).values())), dict):
        body = table([first, "n", *names(rates_by_noise)], rows(rates_by_noise))
    else:
        body = table(
            [first, *(f"n = {n}" for n in next(iter(rates_by_noise.values())))],
            [[told, *rates.values()] for told, rates in rates_by_noise.items()],
        )
    return [f"## {title}", *([about] if about else []), body]


def counts(sims: int, few: int) -> dict[str, int]:
    """Return the number of simulations by part."""
    return dict.fromkeys(parts(sims, few), few) | {
        "interval coverage": sims,
        "accuracy coverage": sims,
        "coverage by process": sims,
        "slow seeds": few // 2,
        "settled": few // 4,
        "false equivalence": 30 * sims,
    }


def by_chance(rate: float, simulations: int) -> str:
    """Return two standard errors of a share."""
    return f"± {2 * (rate * (1 - rate) / simulations) ** 0.5:.1%} by chance"


def markdown(statistics: dict) -> str:
    n = statistics["simulations"]
    parts = [
        "# Statistics against simulated sweeps",
        "Written by `python -m benchmarks.simulation.report`. The simulator (`benchmarks/simulation/worlds.py`) shares"
        " no code with the estimators: log-normal times with what a seed does to all cells (sd 3%) and what is left"
        " (2%), contaminated as named. n is the number of seeds.",
        *section(
            f"Coverage of the 95% intervals ({n['interval coverage']} simulations,"
            f" {by_chance(0.95, n['interval coverage'])})",
            "Student's t below 10 seeds, the expanded percentile bootstrap from there on. Drift over the order of"
            " running disturbs what is not paired by seed, hence paired comparisons.",
            statistics["interval coverage"],
        ),
        *section(
            f"Coverage of a cell's accuracy ({n['accuracy coverage']} simulations)",
            "By the true accuracy, the number of samples (second column) and seeds, which differ by samples alone."
            " The interval is the wider of Student's and Jeffreys' for all samples, hence above 95% with 2 or 3 seeds."
            " Student's alone covered 41% at 0.999 with 300 samples and 2 seeds.",
            statistics["accuracy coverage"],
            "accuracy",
        ),
        *section(
            f"Coverage of a speed-up's 95% interval where processes differ in speed ({n['coverage by process']}"
            " simulations)",
            "By the standard deviation between processes, beside what seeds and trials vary by. Where one process times"
            " all seeds of a cell, its luck is in every one of them, and no interval over seeds can know of it.",
            statistics["coverage by process"],
            "between processes",
        ),
        *section(
            f"Coverage of a speed-up's 95% interval if the machine's speed drifts ({n['coverage under drift']} sweeps"
            " of 6 comparisons)",
            "1, 2 and 4 GPUs with three batches each, on a machine with 4 GPUs, in the order of the project's"
            " scheduler, from records to summary.csv. Drift: by how much the speed changes from the middle of the sweep"
            " to either end. Each seed's trials run in the reverse order of the seed before, so that drift widens the"
            " interval instead of shifting it. When all seeds of the largest gangs ran first, coverage was 38, 11 and"
            " 0.5% at n = 3, 5 and 10, for ±2% as for ±0.5%.",
            statistics["coverage under drift"],
            "drift",
        ),
        *section(
            f"Coverage with variances shrunk over all cells ({n['shrunken coverage']} sweeps of 18 cells)",
            "The variances behind the recommendation's probabilities. When the median of the cells, not their mean,"
            " estimated what a seed does to all cells, coverage was 89 and 91% with 4 clean cells and n = 2 and 3.",
            statistics["shrunken coverage"],
        ),
        *section(
            f"A difference that is exactly the margin, called equivalent ({n['false equivalence']} simulations)",
            f"At a margin of {MARGIN}, which is about one standard deviation of a pair's difference.",
            statistics["false equivalence"],
        ),
        *section(
            f"Recommendation ({n['recommendation']} random sweeps of 18 cells; shares"
            f" {by_chance(0.5, n['recommendation'])} at most)",
            "Regret: how much longer the chosen cell truly takes than the best"
            " cell truly within the margin, of the choices that truly are within it. Its tail is of sweeps in"
            " which a faster cell's accuracy lies so near the margin that these seeds do not tell on which side;"
            " the report tells how far behind the best the choice may be (95%). ±: two standard errors of the"
            " percentile before it, by chance. Accuracies unrelated: what a cell loses tells nothing of the"
            " others; else all lose by one law of batch and rule, which the estimator does not know, and finds in"
            " the accuracies.",
            statistics["recommendation"],
        ),
        *section(
            f"The fast bet and the safe choice ({2 * n['safe and fast']} sweeps of 4 cells,"
            f" {n['safe and fast'] * 3 // 10} of 256)",
            "By the law of accuracies and the number of cells. The fast bet, which is recommended, is the fastest"
            " cell that is more likely than not within the margin, the safe choice the fastest with at least 95%."
            " A miss is a choice that truly is not within it. The slowdown is the mean over the others, against"
            " the fastest cell that truly is. With one seed nothing is told, and the safe choice is the baseline."
            " Before the baseline was set apart in pooling, and more than 200 cells were pooled, 56.7% of the fast"
            " bets missed where 27.2% were told (one law, 256 cells, n = 2), and 25.3% where 14.3% were (all near"
            f" the margin, 16 cells, n = 2). By chance, shares vary by {(2 * n['safe and fast']) ** -0.5:.0%} (4 cells)"
            f" to {(0.3 * n['safe and fast']) ** -0.5:.0%} (256). Where all cells truly lie near the margin,"
            " P(near best) over 90% is right too rarely: where seeds vary as much as cells, chance alone makes some"
            " sure, and half"
            " of these are just beyond the margin. With 16 cells it was right in 94 to 99% where seeds vary by 0.2%,"
            " and in 58 to 81% where they vary by 0.8%, with known variances as well. A prior that expects the baseline"
            " ahead by the margin made it 92 instead of 88%, and told 5 to 7% too many misses beyond a cliff, with more"
            " regret in most worlds; one that expects it ahead by half a margin is used since these sweeps. Beyond"
            " a cliff, cells vary more than two or three seeds tell."
            " Cliff: no loss up to a batch that depends on the rule, then a steep one. Best batch:"
            " each rule has one, and the baseline need not be the best. In both, seeds vary more where more is lost,"
            " cells vary unlike, and accuracies are shares of 500 to 10000 samples. Digits: kept accuracies of 30 seeds"
            " on 144 samples, with random times; the fastest cells are 0.2% beyond the margin. When errors did not"
            " respect the number of samples, 8.5% of these sweeps with 2 seeds were over 90% sure, and 6% of those"
            " were right.",
            statistics["safe and fast"],
            "law",
        ),
        *section(
            "CLEAR in worlds that the estimators do not expect (sweeps of 16 cells)",
            "`benchmarks/simulation/verdicts.py` describes the worlds. Right: truly within the margin, and within"
            " 2% of the"
            " best cell that is. Told: the mean probability that the chosen cell misses the margin. +: with a cell that"
            " is 30% faster than the others, a margin more accurate than the baseline, and within the margin by"
            " three of its intervals. A third of the seeds of the"
            " collapsing cells lose 3.5 margins: three seeds of such a cell show no collapse in 30% of sweeps, five in"
            " 13%, and then nothing warns of it unless similar cells collapse, too. Where large batches collapse, 24"
            " and 30% of the choices missed (n = 3 and 5) and 55 and 65% were right, before cells like those that"
            " collapse were at risk, and four of five collapsed seeds were found. Before spreads followed batch and"
            " loss, cells were expected below the baseline, and collapses of similar cells counted (120 sweeps, n = 3),"
            " CLEAR was right in 98% (clean), 95 (spread grows with batch), 91 (near the margin), 33 (100 images),"
            " 60 (100"
            " shared images), 86 (skewed), 94 (hard) and 0% (large batches collapse, CLEAR in 52%); where P(within) was"
            " at least 90%, the choice was within in 97, 93, 87, 80, 88, 91 and 95%; CLEAR was said of cells a margin"
            " below the best in 62% of sweeps with a poor baseline.",
            statistics["verdicts"],
            "world",
        ),
        *section(
            f"CLEAR after mode=settle ({n['settled']} sweeps of 16 cells each)",
            "The cells that the report's command names get further seeds until the choice is CLEAR, or no seed is asked"
            " for.",
            statistics["settled"],
            "world",
        ),
        *section(
            f"Device-hours of the choice over the fewest, if more GPUs are as fast ({n['ties']} sweeps of 3 cells)",
            "2 and 4 GPUs are at most 1% slower or faster than one, by how much the trials of a cell vary.",
            statistics["ties"],
            "noise",
        ),
        *section(
            f"The critical batch by branching ({n['critical batches']} branch points of 6 batches)",
            "Beyond a random batch the loss grows with each doubling by 0.3 to 2 margins. By the standard deviation"
            " between seeds of a branch's difference from the branch at the reference batch.",
            statistics["critical batches"],
            "seeds differ by",
        ),
        *section(
            f"Recommendation if an accuracy collapsed ({n['collapses']} random sweeps of 18 cells)",
            "One seed of the truly best cell ends at chance accuracy, or one of the baseline, or none.",
            {"clean": statistics["collapses"]},
        ),
        *section(
            f"Recommendation if one seed is {yardstick.SLOWDOWN:g} times slower ({n['slow seeds']} random sweeps of 6"
            " cells)",
            "A seed of the truly best cell, which is as slow when it is timed again; from records to the"
            " recommendation. When its timing counted, the best cell was chosen in 18% of 40 sweeps with 3 seeds.",
            {"clean": statistics["slow seeds"]},
        ),
        *section(
            f"Where the seeds are run that it asks for ({n['followed']} clean sweeps for each n)",
            "The chosen cell, its baseline and its rivals have as many seeds as the report's command gives them, and"
            " the choice is made again. Where 30 seeds would not settle it, it asks for none, and says so.",
            {f"begun with {n} seeds": rates for n, rates in statistics["followed"].items()},
            "",
        ),
        *section(
            f"Other rules of choosing ({n['rules']} clean sweeps for each n)",
            "They exchange misses of the margin for regret: none has less of both by more than chance, at every n, than"
            " the rule that is used (p ≥ 0.5, and of cells within 2% of the least time the most accurate). Of cells"
            " that tie, the likeliest to be best would often be the one whose times came out short by chance: on grids"
            " of the digits, where rules share their timings, it is right as often (batch_scaling/choice_drawn.json).",
            statistics["rules"],
            "rule",
        ),
        *section(
            f"Throughput on 8 and 16 GPUs from 1, 2 and 4: coverage of the 90% interval ({n['extrapolation']}"
            f" simulations, {by_chance(0.9, n['extrapolation'])})",
            "By the cause of the loss, which is not told: seeds and trials vary as in clean sweeps, and the loss on 4"
            " GPUs is 5 to 50% of a step on one. Coverage and half widths leave out sweeps that are refused because"
            " the losses from 1 to 2 and from 2 to 4 GPUs disagree. A cost that begins beyond 4 GPUs cannot be seen.",
            statistics["extrapolation"],
            "cause",
        ),
        *section(
            f"Identical cells that mode=compare marks ({n['comparison']} pairs of sweeps)",
            f"A session makes all cells faster or slower (sd {yardstick.SESSION:.0%}). What all cells share, and how"
            " far cells spread around it, are taken from the cells. Processes: by how much their speeds vary.",
            statistics["comparison"],
        ),
        *section(
            f"Sweeps with some false verdict on their claims ({n['claims']} sweeps)",
            "The two sides of every claim are truly equal, so that each verdict is wrong.",
            statistics["claims"],
            "claims",
        ),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    folder = Path(__file__).parents[2] / "docs" / "results"
    options = argparse.ArgumentParser(prog="python -m benchmarks.simulation.report")
    options.add_argument("sims", nargs="?", type=int, default=10_000)
    options.add_argument("few", nargs="?", type=int, default=1000)
    options.add_argument("parts", nargs="*")
    options.add_argument("--jobs", type=int, default=1)
    given = options.parse_args()
    sims, few, known = given.sims, given.few, parts(given.sims, given.few)
    statistics = json.loads((folder / "statistics.json").read_text())
    with ProcessPoolExecutor(given.jobs) as pool:
        running = {
            name: {place: pool.submit(simulated, sims, few, name, place) for place in known[name]}
            for name in given.parts or known
        }
        for name, futures in running.items():
            print(name, flush=True)
            results = {}
            for place, future in futures.items():
                results[place], seconds = future.result()
                print(f"  {', '.join(place)}: {seconds:.1f} s", flush=True)
            statistics[name] = by_rule(nested(results)) if name == "rules" else nested(results)
            statistics["simulations"][name] = counts(sims, few)[name]
            (folder / "statistics.json").write_text(json.dumps(statistics, indent=1, ensure_ascii=False) + "\n")
            if all(part in statistics for part in known):
                (folder / "statistics.md").write_text(markdown(statistics))


if __name__ == "__main__":
    main()
