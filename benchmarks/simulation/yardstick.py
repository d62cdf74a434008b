"""Rates of the estimators on simulated sweeps against their truth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from benchmarks.simulation.worlds import CLEAN, COUNTS, Drift, Noise, World, loss
from orchestrator.config.request import Metric, Terms
from orchestrator.decision.cell_estimates import Measurements, pooled_differences, score_differences
from orchestrator.decision.choice import Choice, choose
from orchestrator.decision.claim_expressions import Claim
from orchestrator.decision.claim_verdicts import INCONCLUSIVE, Sides, judge
from orchestrator.decision.decide import decide
from orchestrator.decision.more_seeds import further_seeds
from orchestrator.decision.recommendation import CLEAR
from orchestrator.decision.thresholds import SURE, TIE
from orchestrator.schedule.cluster import Node
from orchestrator.schedule.simulation import makespan_s, simulate
from orchestrator.statistics.collapses import collapsed
from orchestrator.statistics.extrapolation import NoExtrapolationError, extrapolated
from orchestrator.statistics.intervals import Moments, apart_from_shared, mean_interval, proportion_interval, welch
from orchestrator.statistics.margins import Difference
from orchestrator.statistics.pooling import Likeness
from orchestrator.store.record import TrialOutcome, TrialRecord
from orchestrator.tables.critical_batch import branches
from sweeps.branch import BRANCH_TOKENS
from sweeps.layout import Gang, Layout
from sweeps.status import Status
from sweeps.trial import TrialSpec
from tests.contract.trials import trial
from tests.unit.orchestrator.frames import collect


def covered(interval, truth) -> float:
    return float(np.mean((interval.lo <= truth) & (truth <= interval.hi)))


def interval_coverage(noise: Noise, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Return the coverage of a cell's mean, of a comparison paired by seed, and of one by Welch (seeds that differ)."""
    pair = noise.draw(generator, sims, 2, seeds)
    apart = noise.draw(generator, sims, 1, seeds)[:, 0]
    one, other = pair[:, 0], pair[:, 1]
    return {
        "mean": covered(mean_interval(one), 0.0),
        "paired ratio": covered(mean_interval(one - other), 0.0),
        "unpaired ratio": covered(welch(Moments.of(one), Moments.of(apart)), 0.0),
    }


def speedup_coverage(noise: Noise, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Return the coverage of a comparison paired by seed."""
    return {"speed-up": interval_coverage(noise, seeds, sims, generator)["paired ratio"]}


def accuracy_coverage(p: float, samples: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Return by number of seeds the coverage of a cell's accuracy; seeds have different samples."""
    coverage = {}
    for seeds in (2, 3, 5, 10):
        values = generator.binomial(samples, p, (sims, seeds)) / samples
        coverage[f"n = {seeds}"] = covered(proportion_interval(values, np.full(values.shape, float(samples))), p)
    return coverage


GPUS, BATCHES = (1, 2, 4), (32, 64, 128)
"""The cells of a sweep whose trials are ordered by the project's scheduler, on one machine with 4 GPUs."""


def coverage_in_order(drift: Drift, seeds: int, sweeps: int, generator: np.random.Generator) -> dict[str, float]:
    """Return the coverage of `speedup` in summary.csv, and the median half width of its interval.

    Trials run in the order of the project's scheduler; from its simulated schedule comes the time at which each is
    timed, and from that the machine's speed.
    """
    trials = [on_gpus(gpus, batch, seed) for gpus in GPUS for batch in BATCHES for seed in range(seeds)]
    nodes = (Node(name="a", cpus=64, gpus=max(GPUS)),)
    records = []
    for sweep in range(sweeps):
        takes_s = {cell: 60 * np.exp(0.5 * generator.standard_normal()) for cell in {trial.cell_id for trial in trials}}
        stays = simulate(trials, nodes, lambda trial: None, lambda trial, takes_s=takes_s: takes_s[trial.cell_id])
        at = np.array([stay.end_s for stay in stays]) / makespan_s(stays)
        logs = drift.draw(generator, at, np.array([stay.trial.seed for stay in stays]))
        for stay, log in zip(stays, logs, strict=True):
            records.append(recorded(stay.trial, sweep, 1000 * stay.trial.gpus**0.9 * np.exp(log), ended_s=stay.end_s))
    cells = collect(records, scaling="weak", reference_batch_size=BATCHES[0])[1]
    cells = cells[cells["gpus"] > 1]
    truth = cells["gpus"].astype(float) ** 0.9
    half = np.log(cells["speedup_hi"] / cells["speedup_lo"]) / 2
    hits = (cells["speedup_lo"] <= truth) & (truth <= cells["speedup_hi"])
    return {"coverage": float(hits.mean()), "half width": float(half.median())}


def on_gpus(gpus: int, batch: int, seed: int) -> TrialSpec:
    """Return a trial with this batch on each of its GPUs."""
    return dataclasses.replace(
        trial(f"{gpus} {batch} {seed}", "quick", timing="device"),
        cell_id=f"{gpus} {batch}",
        axes={"gpus": gpus, "device_batch_size": batch, "lr_rule": "none", "seed": seed},
        gpus=gpus,
        gang=Gang(ranks=gpus, gpus_per_rank=1, cpus_per_rank=1),
        device="cuda",
        layout=Layout(strategy="ddp"),
        seed=seed,
    )


def recorded(
    trial: TrialSpec, sweep: int, samples_per_s: float, *, accuracy: float | None = None, ended_s: float = 0.0
) -> TrialRecord:
    """Return the record of an ok trial in one of many simulated sweeps."""
    outcome = TrialOutcome(
        wall_s=10.0,
        metrics={"samples_per_s": samples_per_s} | ({} if accuracy is None else {"accuracy": accuracy}),
        provenance={"device_model": "H200"},
    )
    finished_at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=ended_s)
    per_gpu = trial.axes["device_batch_size"]
    return dataclasses.replace(
        TrialRecord.of(trial, outcome, attempt=1, finished_at=finished_at.isoformat(timespec="seconds")),
        trial_id=f"{sweep} {trial.trial_id}",
        cell_id=f"{sweep} {trial.cell_id}",
        sweep=str(sweep),
        global_batch_size=int(per_gpu * trial.gpus),
        device_batch_size=per_gpu,
    )


def shrunken_coverage(noise: Noise, seeds: int, sims: int, generator: np.random.Generator, cells: int = 18) -> float:
    """Return the coverage of the comparisons of a sweep's cells with its first, with the recommendation's shrunken
    variances.
    """
    hits = []
    for values in noise.draw(generator, sims, cells, seeds):
        measurements = Measurements(objective=np.exp(values), accuracy=values, baseline=0, margin=1.0)
        differences = score_differences(measurements)
        half = stdtrit(differences.freedom, 0.975) * differences.error
        hits.append(np.mean(np.abs(differences.point[1:]) <= half[1:]))
    return float(np.mean(hits))


def false_equivalence(noise: Noise, seeds: int, sims: int, generator: np.random.Generator, margin: float) -> float:
    """Return how often a difference that is exactly the margin is called equivalent."""
    pair = noise.draw(generator, sims, 2, seeds)
    differences = Moments.of(pair[:, 0] - pair[:, 1] - margin)
    called = [
        Difference(point=float(mean), error=float(np.sqrt(variance / seeds)), freedom=seeds - 1).verdict(margin)
        for mean, variance in zip(differences.mean, differences.variance, strict=True)
    ]
    return float(np.mean([verdict == "equivalent" for verdict in called]))


CELLS = 18
"""Of a recommendation's sweep."""
MARGIN, ACCURACY_NOISE = 0.01, 0.2
"""Of the recommendation's sweeps: accuracies vary by this part of what times do."""
DRAWS = 2_000
"""Of each sweep, where a report takes 20,000: over many sweeps, what a draw leaves to chance averages out."""


Worlds = Callable[[np.random.Generator], World]


def measurements(
    noise: Noise, seeds: int, generator: np.random.Generator, draw: Worlds = World.draw
) -> tuple[Measurements, np.ndarray, np.ndarray]:
    """Return a random sweep as measured, the regret of each cell, and whether it is truly within the margin."""
    world = draw(generator)
    cells = len(world.time)
    objective = world.time[:, None] * np.exp(noise.draw(generator, 1, cells, seeds)[0])
    accuracy = world.accuracy[:, None] + ACCURACY_NOISE * noise.draw(generator, 1, cells, seeds)[0]
    truly = world.accuracy >= world.accuracy[0] - MARGIN
    regret = world.time / world.time[truly].min() - 1
    return measured(world, objective, accuracy), regret, truly


def measured(world: World, objective: np.ndarray, accuracy: np.ndarray, samples: float = np.nan) -> Measurements:
    """Return the values as the sweep measures them."""
    likeness = Likeness(batch=world.batch, recipe=np.unique(world.rule, return_inverse=True)[1])
    flags = collapsed(accuracy, MARGIN)
    return Measurements(
        objective=objective,
        accuracy=accuracy,
        baseline=0,
        margin=MARGIN,
        likeness=likeness,
        collapsed=flags,
        samples=samples,
    )


def recommendations(
    noise: Noise, seeds: int, sims: int, generator: np.random.Generator, draw: Worlds = World.draw
) -> dict[str, float]:
    """Return the regret against the truly best cell within the margin, and whether the probabilities are calibrated."""
    rows = []
    for _ in range(sims):
        asked, regret, truly = measurements(noise, seeds, generator, draw)
        choice = choose(asked, generator, DRAWS)
        chosen, behind = choice.favourite, choice.behind
        if chosen is None:  # no recommendation: the baseline has a collapsed seed, and no cell is within the margin
            continue
        right = truly[chosen] and regret[chosen] <= 0.02
        holds = regret[chosen] <= behind + 1e-9
        rows.append(
            (regret[chosen], truly[chosen], choice.p_within[chosen], choice.p_best[chosen], right, holds, behind)
        )
    regret, truly, p_within, told, right, holds, behind = np.array(rows, dtype=float).T
    kept, sure = regret[truly > 0], told >= 0.9
    return {
        "median regret": float(np.median(kept)),
        **_tail(kept, generator),
        "behind by no more than told (95%)": float(holds.mean()),
        "told, in the median": float(np.median(behind)),
        "truly within the margin": float(truly.mean()),
        "probability of within, as told": float(p_within.mean()),
        "truly best (within 2%)": float(right.mean()),
        "probability of best, as told": float(told.mean()),
        "right where it was over 90% sure": float(right[sure].mean()) if sure.any() else np.nan,
        "over 90% sure": float(sure.mean()),
    }


def _tail(regrets: np.ndarray, generator: np.random.Generator) -> dict[str, float]:
    """Return the 90th percentile, and two standard errors of it by the bootstrap."""
    again = np.quantile(generator.choice(regrets, (200, len(regrets))), 0.9, axis=1)
    return {"90th percentile of the regret": float(np.quantile(regrets, 0.9)), "±": float(2 * again.std())}


ROUNDS, MOST_SEEDS = 3, 40


def followed(noise: Noise, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, dict[str, float]]:
    """Return the results of the choice if the requested seeds are run, round by round."""
    rows: dict[int, list[tuple[float, ...]]] = {}
    for _ in range(sims):
        world = World.draw(generator)
        cells, truly = len(world.time), world.accuracy >= world.accuracy[0] - MARGIN
        regret = world.time / world.time[truly].min() - 1
        objective = world.time[:, None] * np.exp(noise.draw(generator, 1, cells, MOST_SEEDS)[0])
        accuracy = world.accuracy[:, None] + ACCURACY_NOISE * noise.draw(generator, 1, cells, MOST_SEEDS)[0]
        ran = np.full(cells, seeds)
        for number in range(ROUNDS + 1):
            left_out = np.arange(MOST_SEEDS) >= ran[:, None]
            values = [np.where(left_out, np.nan, measurement)[:, : ran.max()] for measurement in (objective, accuracy)]
            choice = choose(measured(world, *values), generator, DRAWS)
            chosen = choice.favourite
            if chosen is None:
                break
            asked, needed = further_seeds(contenders_of(choice, ran), chosen)
            sure = choice.p_best[chosen] >= SURE and choice.p_within[chosen] >= SURE
            rows.setdefault(number, []).append((regret[chosen], truly[chosen], ran.sum(), bool(asked), sure))
            ran[asked] = np.minimum(needed, MOST_SEEDS)
    return {_times(number): _followed(outcomes, generator) for number, outcomes in rows.items()}


def contenders_of(choice: Choice, ran: np.ndarray) -> SimpleNamespace:
    """Return the input of the request for further seeds."""
    return SimpleNamespace(
        choice=choice,
        baseline=0,
        candidates=pd.DataFrame({"n_ok": ran}),
        seeds=[range(count) for count in ran],
        measurements=SimpleNamespace(baseline=0, margin=MARGIN),
    )


def _times(number: int) -> str:
    return "as it begins" if number == 0 else f"after {number} round{'s' * (number > 1)}"


def _followed(outcomes: list[tuple[float, ...]], generator: np.random.Generator) -> dict[str, float]:
    regret, truly, trials, asked, sure = np.array(outcomes, dtype=float).T
    kept = regret[truly > 0]
    return {
        "truly within the margin": float(truly.mean()),
        "truly best (within 2%)": float(((regret <= 0.02) & (truly > 0)).mean()),
        "median regret": float(np.median(kept)),
        "mean regret": float(kept.mean()),
        **_tail(kept, generator),
        "over 90% sure": float(sure.mean()),
        "asks for more": float(asked.mean()),
        "trials a cell": f"{trials.mean() / CELLS:.1f}",
    }


def rules(noise: Noise, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, dict[str, float]]:
    """Return misses of the margin and regret of other rules of choosing, all in the same sweeps."""
    chosen: dict[str, list[tuple[float, float]]] = {}
    for _ in range(sims):
        asked, regret, truly = measurements(noise, seeds, generator)
        choice = choose(asked, generator, DRAWS)
        level, p = choice.log_objective.point, choice.p_within
        picks = {
            f"least time where within with p ≥ {least}": np.where(p >= least, level, np.inf)
            for least in (0.3, 0.4, 0.5, 0.6, 0.7)
        }
        picks["the rule that is used"] = -(np.arange(len(level)) == choice.favourite).astype(float)
        keeps = choice.keeps_accuracy
        tied = keeps & (level <= level[keeps].min() + np.log1p(TIE))
        picks["of those within 2% of the least the likeliest to be best"] = -choice.p_best * tied
        picks["the likeliest to be best, where within with p ≥ 0.5"] = -choice.p_best * keeps
        picks["of those within 2% of the least the most accurate, pooled"] = np.where(
            tied, -choice.pooled_difference, np.inf
        )
        picks["least time / p"] = np.where(p >= 0.05, level - np.log(np.maximum(p, 1e-9)), np.inf)
        picks["least expected opportunity cost, a miss as training twice"] = _opportunity_cost(asked, choice, generator)
        for rule, cost in picks.items():
            pick = int(np.argmin(cost))
            chosen.setdefault(rule, []).append((regret[pick], truly[pick]))
    rows = {}
    for rule, outcomes in chosen.items():
        regrets, within = np.array(outcomes, dtype=float).T
        kept = regrets[within > 0]
        rows[rule] = {
            "truly within the margin": float(within.mean()),
            "mean regret": float(kept.mean()),
            **_tail(kept, generator),
        }
    return rows


def _opportunity_cost(asked: Measurements, choice: Choice, generator: np.random.Generator) -> np.ndarray:
    times = choice.log_objective.draws(generator, DRAWS)
    pooled = pooled_differences(asked, choice.score_difference, generator, DRAWS)
    within = (choice.score_difference.draws(generator, DRAWS) if pooled is None else pooled) >= -MARGIN
    least = np.where(within, times, np.inf).min(axis=1, keepdims=True)
    cost = (np.maximum(times - least, 0.0) + np.log(2) * ~within).mean(axis=0)
    return np.where(choice.p_within >= 0.05, cost, np.inf)


CHANCE = 0.1
"""The accuracy of a seed that collapsed."""


def collapses(noise: Noise, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Return what is recommended if a seed of the truly best cell ends at chance, or one of the baseline."""
    rows = []
    for _ in range(sims):
        world = World.draw(generator)
        objective = world.time[:, None] * np.exp(noise.draw(generator, 1, len(world.time), seeds)[0])
        accuracy = world.accuracy[:, None] + ACCURACY_NOISE * noise.draw(generator, 1, len(world.time), seeds)[0]
        truly = world.accuracy >= world.accuracy[0] - MARGIN
        best = int(np.where(truly, world.time, np.inf).argmin())
        outcomes = []
        for row in (best, 0, None):
            values = accuracy.copy()
            if row is not None:
                values[row, 0] = CHANCE
            asked = measured(world, objective, values)
            favourite = choose(asked, generator, DRAWS).favourite
            warned = asked.collapsed.any() if row is None else bool(asked.collapsed[row, 0])
            outcomes += [favourite == best, favourite is not None and truly[favourite], warned]
        rows.append(outcomes)
    of_best, of_base, none = np.array(rows, dtype=bool).T.reshape(3, 3, -1)
    return {
        "its cell is recommended": float(of_best[0].mean()),
        "… without a warning": float((of_best[0] & ~of_best[2]).mean()),
        "baseline's seed: truly within the margin": float(of_base[1].mean()),
        "baseline's seed: no warning": float((~of_base[2]).mean()),
        "no collapse: truly within the margin": float(none[1].mean()),
        "no collapse: a false warning": float(none[2].mean()),
    }


def extrapolation_coverage(
    truth: str, noise: Noise, seeds: int, sims: int, generator: np.random.Generator
) -> dict[str, float]:
    """Return the coverage of throughputs on 8 and 16 GPUs from 1, 2 and 4, their half widths, and the share refused."""
    wanted, rows = np.array([8.0, 16.0]), []
    sizes, parts = generator.uniform(0.05, 0.5, sims), generator.uniform(0, 1, sims)
    logs = noise.draw(generator, sims, len(COUNTS), seeds)
    for size, part, log in zip(sizes, parts, logs, strict=True):
        means = 1000 * COUNTS / (1 + loss(truth, size, part, COUNTS))
        rates = dict(zip(COUNTS.tolist(), means[:, None] * np.exp(log), strict=True))
        try:
            intervals = [extrapolated(rates, count) for count in wanted.tolist()]
        except NoExtrapolationError:
            continue
        truths = 1000 * wanted / (1 + loss(truth, size, part, wanted))
        rows.append(
            [
                (interval.lo <= rate <= interval.hi, np.sqrt(interval.hi / interval.lo) - 1)
                for interval, rate in zip(intervals, truths, strict=True)
            ]
        )
    covers, half = np.array(rows, dtype=float).reshape(len(rows), len(wanted), 2).T
    return {
        f"{what}, {count:g} GPUs": float(value)
        for what, values in (("coverage", covers.mean(axis=1)), ("half width", np.median(half, axis=1)))
        for count, value in zip(wanted, values, strict=True)
    } | {"cannot be predicted": 1 - len(rows) / sims}


NEARLY_EQUAL = 0.01
"""More GPUs are at most this much faster or slower than one."""


def hours_of_ties(noise: Noise, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Return the device-hours of the chosen cell over the fewest, if more GPUs are as fast as one and as accurate."""
    gpus, ratios, sure = np.array(GPUS, dtype=float), [], []
    for _ in range(sims):
        time_s = np.exp(generator.uniform(-NEARLY_EQUAL, NEARLY_EQUAL, len(gpus)))
        objective = time_s[:, None] * np.exp(noise.draw(generator, 1, len(gpus), seeds)[0])
        accuracy = 0.9 + ACCURACY_NOISE * noise.draw(generator, 1, len(gpus), seeds)[0]
        hours = gpus * np.exp(np.log(objective).mean(axis=1))
        asked = Measurements(objective=objective, accuracy=accuracy, baseline=0, margin=MARGIN, cost=hours)
        choice = choose(asked, generator, DRAWS)
        ratios.append(gpus[choice.favourite] * time_s[choice.favourite] / (gpus * time_s).min())
        sure.append(choice.p_best[choice.favourite] >= SURE)
    return {"hours over the fewest": float(np.mean(ratios)), "over 90% sure": float(np.mean(sure))}


BRANCHES, REFERENCE, WINDOW = (8, 16, 32, 64, 128, 256), 8, 1000
"""Batches of the branches of one base, the batch of the base, and the tokens of each branch."""


def critical_batches(spread: float, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Return how often the range of the critical batch by branching holds the true one, and how often it has an end.

    The loss grows by a constant part of the margin with each doubling beyond a random batch. `spread` is the standard
    deviation between seeds of a difference, in margins.
    """
    doublings, rows = np.arange(len(BRANCHES)), []
    for _ in range(sims):
        worse = generator.uniform(0.3, 2.0) * np.maximum(0.0, doublings - generator.uniform(0, 5))
        losses = 3 + generator.normal(0, 0.1, seeds) + MARGIN * worse[:, None]
        losses[1:] += spread * MARGIN * generator.standard_normal((len(BRANCHES) - 1, seeds))
        trials = pd.DataFrame(
            [
                {
                    BRANCH_TOKENS: 100,
                    "status": Status.OK.value,
                    "val_loss": losses[place, seed],
                    "global_batch_size": batch,
                }
                | {"lr_rule": "sqrt", "lr_multiplier": 1.0, "gpus": 1, "seed": seed}
                | {"tokens": 100 + WINDOW, "sequence_length": 1}
                for place, batch in enumerate(BRANCHES)
                for seed in range(seeds)
            ]
        )
        critical = branches(trials, pd.DataFrame(), Metric.named("val_loss"), MARGIN, REFERENCE)
        (least,) = critical.loc[critical["is_lower_end"], "global_batch_size"]
        ends = critical.loc[critical["is_upper_end"], "global_batch_size"].tolist()
        true = BRANCHES[int(np.flatnonzero(worse <= 1)[-1])]
        rows.append((least <= true and (not ends or true < ends[0]), bool(ends), least == true))
    return dict(zip(("holds the true batch", "has an upper end", "begins at it"), np.mean(rows, axis=0), strict=True))


SESSION = 0.03
"""Standard deviation of what a session does to all cells of a sweep."""


def marked_by_compare(noise: Noise, seeds: int, sims: int, generator: np.random.Generator, cells: int) -> dict:
    """Return the share of identical cells that are marked in a comparison of two sessions, and of cells 10% faster."""
    rows = []
    sides = [noise.draw(generator, sims, cells, seeds) for _ in range(2)]
    sides[0] += SESSION * generator.standard_normal((sims, 1, 1))
    for one, other in zip(*sides, strict=True):
        faster = one.copy()
        faster[0] += 0.1
        alone = welch(Moments.of(one), Moments.of(other))
        apart, apart_faster = (
            apart_from_shared(Moments.of(session), Moments.of(other))[1] for session in (one, faster)
        )
        marks = [((interval.lo > 0) | (interval.hi < 0)) for interval in (alone, apart, apart_faster)]
        rows.append((marks[0].mean(), marks[1].mean(), marks[2][0]))
    names = ("marked if each cell is judged alone", "marked", "a cell 10% faster is marked")
    return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))


def false_verdicts(claims: int, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Return the share of sweeps with a verdict on any of these claims, whose two sides are truly equal."""
    claim = Claim(sentence="So", expression="accuracy(gpus=2) > accuracy(gpus=1)")
    rows = []
    for values in CLEAN.draw(generator, sims * claims, 2, seeds).reshape(sims, claims, 2, seeds):
        verdicts = [judge(claim, Sides.of(left, right, by_ratio=False)) for left, right in values]
        rows.append(any(verdict.verdict != INCONCLUSIVE for verdict in verdicts))
    return {"some verdict": float(np.mean(rows))}


SLOWDOWN = 10.0
"""Of one of the seeds of the best cell, in each of its timings."""


def slow_seeds(noise: Noise, seeds: int, sims: int, generator: np.random.Generator) -> dict[str, float]:
    """Return what is recommended if a seed of the best cell is slow, also when it is timed again; from records on."""
    axes = {"gpus": "gpus", "device_batch_size": "device_batch_size"}
    rows = []
    for _ in range(sims):
        cells = [(gpus, batch) for gpus in GPUS for batch in BATCHES[:2]]
        rate = np.array([gpus**0.8 for gpus, _ in cells]) * np.exp(0.3 * generator.standard_normal(len(cells)))
        logs = noise.draw(generator, 1, len(cells), seeds)[0]
        accuracy = 0.95 + noise.draw(generator, 1, len(cells), seeds)[0] / 50
        best = int(rate.argmax())
        slow = np.zeros(logs.shape, dtype=bool)
        slow[best, 0] = True
        speed = 1000 * rate[:, None] * np.exp(logs) / np.where(slow, SLOWDOWN, 1.0)
        records = [
            dataclasses.replace(
                record, metrics=record.metrics | {"samples": 60_000.0, "val_accuracy": accuracy[row, seed]}
            )
            for (row, seed), value in np.ndenumerate(speed)
            for record in [recorded(on_gpus(*cells[row], seed), 0, float(value))]
        ]
        frames = collect(records, scaling="weak", reference_batch_size=BATCHES[0])
        recommendation = decide(*frames, Terms(axes=axes, arguments=()))
        chosen = next((row for row, (g, b) in enumerate(cells) if recommendation.cell_id == f"0 {g} {b}"), None)
        right = chosen is not None and rate[chosen] >= rate[best] / (1 + TIE)
        told = any(caveat.code == "straggler" for caveat in recommendation.caveats)
        rows.append((right, told or chosen != best, recommendation.verdict == CLEAR, bool(recommendation.commands)))
    right, told, clear, again = np.array(rows, dtype=float).mean(axis=0).tolist()
    return {
        "truly best (within 2%)": right,
        "the slow seed is told, if its cell is chosen": told,
        "clear": clear,
        "asks to time again": again,
    }
