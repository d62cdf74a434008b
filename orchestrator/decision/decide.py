"""Turns the frames of a sweep into its recommendation, as data.

A recommendation has a shortlist (the chosen cell, its baseline, and cells that users may prefer), the Pareto front of
time, accuracy and cost, the best cell for each number of GPUs, and the cells that need more seeds with the command that
runs them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.trials import parsed_cell
from orchestrator.config.overrides import command, narrowed_to, settle_command
from orchestrator.config.request import Terms
from orchestrator.decision.candidates import Contenders
from orchestrator.decision.choice import TIE
from orchestrator.decision.explain import (
    caveats,
    chosen_cell,
    no_cell,
    reasons,
    sensitivity,
    too_few_workers,
    why_not,
    without_objective,
)
from orchestrator.decision.gpu_steps import gpu_steps
from orchestrator.decision.recommendation import (
    CLEAR,
    FEWEST_SEEDS,
    NO_OBJECTIVE,
    NOTICED,
    SPEED_ONLY,
    SURE,
    TIED,
    UNDECIDED,
    Figure,
    GpuCount,
    MoreSeeds,
    Recommendation,
    Remark,
    Rival,
    Setting,
    TradeOff,
    is_sure,
    remark,
)
from orchestrator.decision.verdicts import Verdict
from orchestrator.statistics.intervals import Interval
from orchestrator.text.rows import gpus_in_words
from sweeps.status import Status


def with_more(seeds: Sequence[int], more: int) -> list[int]:
    """Return the seeds plus this number of further seeds, the smallest that are free."""
    free = (seed for seed in range(len(seeds) + more) if seed not in set(seeds))
    return sorted([*seeds, *(next(free) for _ in range(more))])


_VALUES = ("gpus", "strategy", "global_batch_size", "device_batch_size", "lr_rule", "lr_multiplier", "lr")

_WITH_INTERVAL = {"samples_per_s": "1/s", "speedup": "1", "efficiency": "1", "accuracy": "1"}
"""Columns of the summary with an interval, and their units."""


def shortlist(
    found: Contenders, front: Sequence[TradeOff], terms: Terms, others: Collection[str] = ()
) -> tuple[Setting, ...]:
    """Return the chosen cell, then by objective the front, the cells that may be best, `others`, and the baseline."""
    chosen, level = found.chosen, found.choice.log_objective.point
    on_front = np.asarray(found.cells["cell_id"].isin([point.cell_id for point in front]))
    noticed = on_front | (found.choice.p_best >= NOTICED) | found.cells["cell_id"].isin(list(others)).to_numpy()
    noticed[[row for row in (chosen, found.contest.baseline) if row is not None]] = True
    rows = sorted(np.flatnonzero(noticed).tolist(), key=lambda row: (row != chosen, np.isnan(level[row]), level[row]))
    intervals = {name: (total.intervals(), total.unit) for name, total in found.totals.items()}
    metric = terms.metric.name
    for name, unit in (_WITH_INTERVAL | ({metric: "1"} if metric in found.cells else {})).items():
        point, lo, hi = (found.cells[f"{name}{end}"].to_numpy(dtype="float64") for end in ("", "_lo", "_hi"))
        intervals[name] = (Interval(point=point, lo=lo, hi=hi), unit)
    worse = found.choice.accuracy_difference.intervals()
    intervals[f"{metric}_difference"] = (worse if terms.metric.higher_is_better else worse.negated(), "1")
    return tuple(_setting(found, row, terms, intervals, on_front=bool(on_front[row])) for row in rows)


def axes_of(found: Contenders, row: int, terms: Terms) -> dict[str, Any]:
    """Return the axes of a cell by the sweep's names, without axes that its trials did not have."""
    cell = found.cells.loc[row]
    had = {
        axis: cell[column] for axis, column in terms.axes.items() if axis in terms.nullable or pd.notna(cell[column])
    }
    return {axis: parsed_cell(_plain(value)) for axis, value in had.items()}


def _setting(
    found: Contenders, row: int, terms: Terms, intervals: Mapping[str, tuple[Interval, str]], *, on_front: bool
) -> Setting:
    cell, axes = found.cells.loc[row], axes_of(found, row, terms)
    narrowed = narrowed_to(axes, sorted(found.seeds[row]), excludes=terms.excludes, zips=terms.zips)
    return Setting(
        cell_id=str(cell["cell_id"]),
        name=found.names[row],
        baseline_cell_id=_plain(cell["baseline_cell_id"]),
        axes=axes,
        values={column: _plain(cell[column]) for column in _VALUES},
        overrides=tuple(narrowed),
        command=command(terms.arguments, narrowed),
        figures={
            name: Figure(value=float(each.point[row]), lo=float(each.lo[row]), hi=float(each.hi[row]), unit=unit)
            for name, (each, unit) in intervals.items()
        },
        timing_valid=_plain(cell["timing_valid"]),
        n_timed=int(found.n_timed[row]),
        n_ok=int(found.n_ok[row]),
        note=str(cell["note"]),
        on_front=on_front,
        p_best=found.p_best(row),
        p_within_margin=float(found.choice.p_within[row]),
        why_not=why_not(found, found.chosen, row),
    )


def rivals(found: Contenders, chosen: int) -> tuple[Rival, ...]:
    """Return the cells that may be the best instead of the chosen one, or tie with it; the likeliest first."""
    choice, tied = found.choice, found.choice.ties_with(chosen)
    others = (tied | (choice.p_best >= NOTICED)) & (np.arange(len(tied)) != chosen)
    rows = sorted(np.flatnonzero(others).tolist(), key=lambda row: (-np.nan_to_num(choice.p_best[row]), not tied[row]))
    return tuple(
        Rival(
            cell_id=str(found.cells["cell_id"][row]),
            name=found.names[row],
            p_best=found.p_best(row),
            p_within_margin=float(choice.p_within[row]),
            eligible=bool(choice.passes[row]),
            tied=bool(tied[row]),
            n_timed=int(found.n_timed[row]),
            n_ok=int(found.n_ok[row]),
        )
        for row in rows
    )


def _plain(value: Any) -> Any:
    """Return a plain Python value instead of a numpy or pandas value; None if missing."""
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


MOST_SEEDS = 30
"""The largest practical number of seeds."""

_MOST_RIVALS = 3
"""Maximum number of cells besides the chosen one and its baseline that get more seeds."""


def further_seeds(found: Contenders, chosen: int) -> tuple[list[int], int]:
    """Return the cells that need more seeds, and how many seeds each should have.

    The cells are the chosen one, its baseline and the cells that may beat it. All get the same number of seeds, so that
    they can be paired by seed.
    """
    choice, compared = found.choice, not math.isnan(found.choice.accuracy_difference.point[chosen])
    sure = is_sure(choice.p_best[chosen]) and (not compared or is_sure(choice.p_within[chosen]))
    few = bool(found.candidates["n_ok"].min() < FEWEST_SEEDS)
    if sure and not few:
        return [], 0
    settled = {row: _settles(found, chosen, row) for row in _rivals(found, chosen)}
    rivals = [row for row, seeds in settled.items() if seeds is not None]
    margin = _settles_margin(found, chosen) if compared else None
    needed = max([FEWEST_SEEDS, margin or 0, *(seeds for seeds in settled.values() if seeds is not None)])
    baseline = found.contest.baseline
    wanted = dict.fromkeys([chosen, *([baseline] if compared and baseline is not None else []), *rivals])
    return [row for row in wanted if len(found.seeds[row]) < needed], needed


def unsettled(found: Contenders, chosen: int) -> list[Remark]:
    """Return rivals that no practical number of seeds separates from the choice, and cells too close to the margin."""
    unsure = [row for row in _rivals(found, chosen) if _settles(found, chosen, row) is None]
    equal = [found.names[row] for row in unsure if not _is_faster(found, chosen, row)]
    near: list[str | None] = [found.names[row] for row in unsure if _is_faster(found, chosen, row)]
    compared = not math.isnan(found.choice.accuracy_difference.point[chosen])
    if compared and not is_sure(found.choice.p_within[chosen]) and _settles_margin(found, chosen) is None:
        near = [None, *near]
    tied = [remark("indistinguishable", seeds=MOST_SEEDS, names=equal)] if equal else []
    return tied + [
        remark("near_margin", metric=found.metric, seeds=MOST_SEEDS, name=name, margin=found.contest.margin)
        for name in near
    ]


def _rivals(found: Contenders, chosen: int) -> Sequence[int]:
    """Return the cells most likely to be best after the chosen one; if unknown, those with the least objective."""
    p_best, level = found.choice.p_best, found.choice.log_objective.point
    misses = found.choice.accuracy_difference.point < -found.contest.margin
    open_yet = (np.isnan(p_best) & ~np.isnan(level)) | (p_best >= NOTICED)
    others = [i for i in np.flatnonzero(open_yet).tolist() if i != chosen]
    return sorted(others, key=lambda i: (-np.nan_to_num(p_best[i]), misses[i], level[i]))[:_MOST_RIVALS]


def _settles(found: Contenders, chosen: int, rival: int) -> int | None:
    """Return the seeds that separate two cells: by objective or, for a rival with clearly less, by accuracy."""
    level = found.choice.log_objective
    if _is_faster(found, chosen, rival):
        return _settles_margin(found, rival)
    variance = sum(float(level.error[i] ** 2 * level.n[i]) for i in (chosen, rival))
    error = math.hypot(*(float(level.error[i]) for i in (chosen, rival)))
    return _seeds(float(level.point[rival] - level.point[chosen]) + math.log1p(TIE), variance, error)


def _is_faster(found: Contenders, chosen: int, rival: int) -> bool:
    """Return whether only its accuracy keeps a rival from being chosen."""
    level, loss = found.choice.log_objective.point, found.choice.accuracy_difference.point
    return bool(level[rival] < level[chosen] - math.log1p(TIE)) and not math.isnan(loss[rival])


def _settles_margin(found: Contenders, row: int) -> int | None:
    """Return the seeds that show whether the cell is within the margin; 0 for the baseline, which is."""
    loss = found.choice.accuracy_difference
    if row == found.contest.baseline:
        return 0
    error = float(loss.error[row])
    return _seeds(float(loss.point[row]) + found.contest.margin, error**2 * float(loss.n[row]), error)


def _seeds(gap: float, variance: float, error: float) -> int | None:
    """Return 0 if nothing is known yet, None if probably no practical number is enough."""
    if math.isnan(gap) or math.isnan(variance):
        return 0
    return seeds_to_tell(gap, variance, error)


TOO_UNLIKELY = 0.2
"""If MOST_SEEDS tell a difference with at most this probability, no number of seeds is proposed."""


def seeds_to_tell(gap: float, variance: float, error: float) -> int | None:
    """Return the seeds that probably tell the sign of a difference with probability SURE; None if MOST_SEEDS do not.

    n seeds tell a true difference d if t(SURE, n − 1)² · variance / n ≤ d². Here d is not known: it is normal with mean
    `gap` and standard deviation `error`, which is what few seeds say about it. `variance` is that of the difference
    between values of one seed. Returns the median need, at most MOST_SEEDS.
    """
    from scipy.special import ndtr, stdtrit

    chance = 0.0
    for n in range(2, MOST_SEEDS + 1):
        told = stdtrit(n - 1, SURE) * math.sqrt(variance / n)
        known = float(abs(gap) >= told)
        chance = known if error == 0 else 1 - float(ndtr((told - gap) / error) - ndtr((-told - gap) / error))
        if chance >= 0.5:
            return n
    return MOST_SEEDS if chance > TOO_UNLIKELY else None


def more_seeds(found: Contenders, asked: Sequence[int], needed: int) -> Iterator[MoreSeeds]:
    """Yield how many further seeds each cell should get."""
    for row in asked:
        cell_id = str(found.cells["cell_id"][row])
        yield MoreSeeds(cell_id=cell_id, name=found.names[row], seeds=needed - len(found.seeds[row]))


def trade_offs(found: Contenders) -> list[TradeOff]:
    """Return time, metric and cost of each cell, means over its seeds."""
    cells, totals = found.cells, (found.totals[each].means().tolist() for each in (found.deciding_time, "cost"))
    values = (found.metric.sign * cells["score"]).tolist()
    rows = zip(cells["cell_id"], found.names, values, *totals, strict=True)
    return [
        TradeOff(cell_id=str(cell_id), name=name, time_s=time_s, metric=value, cost=cost)
        for cell_id, name, value, time_s, cost in rows
    ]


def front(found: Contenders) -> tuple[TradeOff, ...]:
    """Return the candidates that no other one beats in time, accuracy and cost at once."""
    points = trade_offs(found)
    return pareto_front([points[row] for row in found.candidates.index], found.metric.sign)


def pareto_front(points: Sequence[TradeOff], sign: float) -> tuple[TradeOff, ...]:
    """Return the cells that no other one equals in all known figures and beats in one; sorted by time.

    `sign` is the metric's, as in `Metric`.
    """
    kept = [point for point in points if not any(_beats(other, point, sign) for other in points)]
    return tuple(sorted(kept, key=lambda point: (math.isnan(point.time_s), point.time_s)))


def _beats(one: TradeOff, other: TradeOff, sign: float) -> bool:
    gains = [other.time_s - one.time_s, sign * (one.metric - other.metric), other.cost - one.cost]
    known = [gain for gain in gains if not math.isnan(gain)]
    return bool(known) and min(known) >= 0 and max(known) > 0


def largest_batch(found: Contenders, chosen: int) -> str | None:
    """Return the best cell by the objective with the largest global batch; None if the chosen cell's is as large.

    Only cells within the margin of the most accurate one with that batch count.
    """
    batch, scores = found.cells["global_batch_size"], found.cells["score"]
    largest = (batch == batch.max()) & scores.notna() & np.isfinite(found.choice.log_objective.point)
    if found.contest.baseline is None or batch[chosen] == batch.max() or not largest.any():
        return None
    near = largest & (scores >= scores[largest].max() - found.contest.margin)
    return str(found.cells["cell_id"].iloc[int(np.where(near, found.choice.log_objective.point, np.inf).argmin())])


def gpu_counts(found: Contenders) -> tuple[GpuCount, ...]:
    """Return the best cell for each number of GPUs tried, from the fewest to the most.

    The rule is that of the recommendation, among the cells with that number; at the favourite's number it is the
    favourite. Empty if only one number was tried.
    """
    counts, points = sorted(set(found.tried["gpus"].astype("float64"))), trade_offs(found)
    return tuple(_best(found, points, count) for count in counts) if len(counts) > 1 else ()


def _best(found: Contenders, points: Sequence[TradeOff], gpus: float) -> GpuCount:
    choice, name = found.choice, gpus_in_words(gpus, on_cpu=found.on_cpu)
    known = ~np.isnan(choice.log_objective.point) & (found.cells["gpus"].to_numpy(dtype="float64") == gpus)
    row = choice.favourite if choice.favourite is not None and known[choice.favourite] else choice.best_of(known)
    if row is not None:
        return GpuCount(gpus=gpus, name=name, best=points[row])
    ok = (found.tried["gpus"] == gpus) & (found.tried["status"] == Status.OK.value)
    why = remark("none_has_figure", measure=found.measure.name) if ok.any() else remark("no_ok_cell")
    if ok.any() and set(found.tried.loc[ok, "cell_id"]) <= found.without_metric:
        why = remark("none_has_metric", metric=found.metric)
    return GpuCount(gpus=gpus, name=name, best=None, why_none=remark("none_keeps_margin") if known.any() else why)


def decide(trials: pd.DataFrame, cells: pd.DataFrame, terms: Terms, judged: Sequence[Verdict] = ()) -> Recommendation:
    """Return the recommendation for a sweep with these frames (see `analysis.trials.collect`) and judged claims."""
    if terms.objective == NO_OBJECTIVE:
        headline, *details = [*too_few_workers(trials), *without_objective(cells, judged)]
        return Recommendation(
            objective=NO_OBJECTIVE,
            measure="",
            metric=terms.metric,
            margin=terms.margin,
            headline=headline,
            details=tuple(details),
            provisional=False,
        )
    found = Contenders.of(trials, cells, terms)
    chosen, baseline, unbeaten = found.chosen, found.contest.baseline, front(found)
    answer = no_cell(found) if chosen is None else chosen_cell(found, chosen)
    headline, *details = [*too_few_workers(trials), *answer]
    counts = gpu_counts(found)
    others = () if chosen is None else rivals(found, chosen)
    safe = (
        None
        if chosen is None or found.choice.safe in (None, chosen)
        else str(found.cells["cell_id"][found.choice.safe])
    )
    largest = None if chosen is None else largest_batch(found, chosen)
    poor = None if found.poor_reference is None else str(found.cells["cell_id"][found.poor_reference])
    named = [
        *filter(None, [safe, largest, poor]),
        *(each.cell_id for each in others),
        *(count.best.cell_id for count in counts if count.best),
    ]
    outcome = Recommendation(
        objective=terms.objective,
        measure=found.measure.name,
        metric=terms.metric,
        margin=terms.margin,
        tokens=terms.budget.get("tokens") if cells["global_batch_size"].nunique() > 1 else None,
        baseline_cell_id=None if baseline is None else str(found.cells["cell_id"][baseline]),
        poor_reference_cell_id=poor,
        headline=headline,
        details=tuple(details),
        verdict=UNDECIDED,
        provisional=True,
        front=unbeaten,
        gpu_counts=counts,
        gpu_steps=gpu_steps(found, terms),
        on_cpu=found.on_cpu,
        deciding_time=found.deciding_time,
        cost_unit=found.totals["cost"].unit,
        left_out=tuple(found.left_out),
        shortlist=shortlist(found, unbeaten, terms, named),
    )
    if chosen is None:
        return outcome
    doubtful = tuple(caveats(found, chosen))
    asked, needed = further_seeds(found, chosen)
    times_again = not found.are_timed or found.timed_once(chosen) or bool(found.stragglers[chosen])
    sure = is_sure(found.p_best(chosen)) and not doubtful
    settled = SPEED_ONLY if baseline is None else CLEAR
    return replace(
        outcome,
        cell_id=str(found.cells["cell_id"][chosen]),
        name=found.names[chosen],
        safe_cell_id=safe,
        largest_batch_cell_id=largest,
        verdict=settled if sure else TIED if found.are_timed and any(other.tied for other in others) else UNDECIDED,
        rivals=others,
        provisional=bool(doubtful) or baseline is None,
        caveats=doubtful,
        p_best=found.p_best(chosen),
        p_within_margin=float(found.choice.p_within[chosen]),
        behind=math.nan if len(found.candidates) == 1 else found.choice.behind,
        reasons=tuple(reasons(found)),
        sensitivity=(*sensitivity(found, chosen), *unsettled(found, chosen)),
        more_seeds=tuple(more_seeds(found, asked, needed)),
        commands=(settle_command(terms.arguments),) if asked or times_again else (),
    )
