"""Turns the frames of a sweep into its recommendation, as data.

A recommendation has a shortlist (the chosen cell, its baseline, and cells that users may prefer), the best cell for
each number of GPUs, and the cells that need more seeds with the command that runs them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.analysis.summary import rows_of
from orchestrator.analysis.trials import parsed_cell
from orchestrator.config.commands import command, narrowed_to, settle_command
from orchestrator.config.request import Terms
from orchestrator.decision.candidates import Contenders
from orchestrator.decision.claim_verdicts import Verdict
from orchestrator.decision.explain import (
    caveats,
    chosen_cell,
    no_cell,
    reasons,
    runner_up,
    sensitivity,
    too_few_workers,
    why_not,
    without_objective,
)
from orchestrator.decision.gpu_steps import gain_over, gpu_steps
from orchestrator.decision.more_seeds import further_seeds, unsettled
from orchestrator.decision.recommendation import (
    CLEAR,
    NO_OBJECTIVE,
    SPEED_ONLY,
    TIED,
    UNDECIDED,
    Cell,
    Figure,
    GpuCount,
    LargerBatch,
    MoreSeeds,
    Recommendation,
    Remark,
    remark,
)
from orchestrator.decision.same_batch import factors_of_speedup
from orchestrator.decision.thresholds import NOTICED, SAFE, TIE
from orchestrator.statistics.intervals import Array, Interval
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text.cell_labels import axis as axis_name
from orchestrator.text.cell_labels import cell_label, gpus_in_words
from orchestrator.text.numbers import config_value, fact
from sweeps.status import Status

_VALUES = ("gpus", "strategy", "global_batch_size", "device_batch_size", "lr_rule", "lr_multiplier", "lr")

_WITH_INTERVAL = {"samples_per_s": "1/s", "speedup": "1", "efficiency": "1", "accuracy": "1"}
"""Columns of the summary with an interval, and their units."""


def shortlist(contenders: Contenders, others: Collection[str] = ()) -> tuple[Cell, ...]:
    """Return the chosen cell, then by objective the front, the cells that may be best, `others`, and the baseline."""
    chosen, level = contenders.chosen, contenders.choice.log_objective.point
    is_on_front = on_front(contenders)
    is_named = contenders.cells["cell_id"].isin(list(others)).to_numpy()
    noticed = is_on_front | is_named | (contenders.choice.p_best >= NOTICED)
    noticed[[row for row in (chosen, contenders.baseline) if row is not None]] = True
    rows = sorted(np.flatnonzero(noticed).tolist(), key=lambda row: (row != chosen, np.isnan(level[row]), level[row]))
    intervals = {name: (total.intervals(), total.unit) for name, total in contenders.totals.items()}
    metric = contenders.metric.name
    for name, unit in (_WITH_INTERVAL | ({metric: "1"} if metric in contenders.cells else {})).items():
        point, lo, hi = (contenders.cells[f"{name}{end}"].to_numpy(dtype="float64") for end in ("", "_lo", "_hi"))
        intervals[name] = (Interval(point=point, lo=lo, hi=hi), unit)
    # The summary compares with fewer GPUs at the same batch; the recommendation with one baseline for all cells.
    intervals["gpu_speedup"] = intervals.pop("speedup")
    if contenders.baseline is not None:
        behind = contenders.choice.log_objective.minus(contenders.baseline).intervals()
        intervals["speedup"] = (behind.negated().map(np.exp), "1")
    worse = contenders.choice.score_difference.intervals()
    intervals[f"{metric}_difference"] = (worse if contenders.metric.higher_is_better else worse.negated(), "1")
    pooled = contenders.metric.sign * contenders.choice.pooled_difference
    intervals[f"{metric}_difference_pooled"] = (_without_ends(pooled), "1")
    for name, factor in zip(("speedup_of_gpus", "speedup_of_batch"), factors_of_speedup(contenders), strict=True):
        intervals[name] = (_without_ends(factor), "1")
    return tuple(_cell(contenders, row, intervals, on_front=bool(is_on_front[row])) for row in rows)


def _without_ends(point: Array) -> Interval:
    unknown = np.full(len(point), np.nan)
    return Interval(point=point, lo=unknown, hi=unknown)


def axes_of(contenders: Contenders, row: int) -> dict[str, Any]:
    """Return the axes of a cell by the sweep's names, without axes that its trials did not have."""
    cell, terms = contenders.rows[row], contenders.terms
    had = {
        axis: cell[column] for axis, column in terms.axes.items() if axis in terms.nullable or pd.notna(cell[column])
    }
    return {axis: parsed_cell(_plain(value)) for axis, value in had.items()}


def _cell(contenders: Contenders, row: int, intervals: Mapping[str, tuple[Interval, str]], *, on_front: bool) -> Cell:
    cell, terms, axes = contenders.rows[row], contenders.terms, axes_of(contenders, row)
    chosen = contenders.chosen
    narrowed = narrowed_to(axes, sorted(contenders.seeds[row]), excludes=terms.excludes, zips=terms.zips)
    return Cell(
        cell_id=str(cell["cell_id"]),
        name=contenders.names[row],
        further={axis_name(column): fact(config_value(cell[column])) for column in contenders.further_axes},
        baseline_cell_id=_plain(cell["baseline_cell_id"]),
        axes=axes,
        values={column: _plain(cell[column]) for column in _VALUES},
        overrides=tuple(narrowed),
        command=command(terms.arguments, narrowed),
        figures={
            name: Figure(
                value=float(interval.point[row]), lo=float(interval.lo[row]), hi=float(interval.hi[row]), unit=unit
            )
            for name, (interval, unit) in intervals.items()
        },
        timing_valid=_plain(cell["timing_valid"]),
        n_timed=int(contenders.n_timed[row]),
        n_ok=int(cell["n_ok"]),
        note=str(cell["note"]),
        on_front=on_front,
        p_best=contenders.p_best(row),
        p_within_margin=float(contenders.choice.p_within[row]),
        eligible=bool(contenders.choice.passes[row]),
        tied=chosen is not None and bool(contenders.choice.ties_with(chosen)[row]),
        why_not=why_not(contenders, chosen, row),
    )


def rivals(contenders: Contenders, chosen: int) -> list[int]:
    """Return the cells that may be the best instead of the chosen one, or tie with it; the likeliest first."""
    choice, tied = contenders.choice, contenders.choice.ties_with(chosen)
    others = (tied | (choice.p_best >= NOTICED)) & (np.arange(len(tied)) != chosen)
    return sorted(np.flatnonzero(others).tolist(), key=lambda row: (-np.nan_to_num(choice.p_best[row]), not tied[row]))


def _plain(value: Any) -> Any:
    """Return a plain Python value instead of a numpy or pandas value; None if missing."""
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def on_front(contenders: Contenders) -> npt.NDArray[np.bool_]:
    """Return which cells are candidates that no other one equals in all known figures and beats in one.

    The figures are time, metric and cost, means over the seeds.
    """
    times, costs = (contenders.totals[name].means() for name in (contenders.deciding_time, "cost"))
    figures = np.column_stack([-times, contenders.cells["score"].to_numpy(dtype="float64"), -costs])
    is_candidate = ~np.isnan(contenders.choice.log_objective.point)
    gains = figures[is_candidate, None, :] - figures[None, :, :]
    beats = (np.fmin.reduce(gains, axis=2) >= 0) & (np.fmax.reduce(gains, axis=2) > 0)
    return np.asarray(is_candidate & ~beats.any(axis=0))


def larger_batches(contenders: Contenders, today: int) -> tuple[LargerBatch, ...]:
    """Return the global batches above that of the cell to use now, with their chance to keep the margin.

    NaN where it is not known.
    """
    compared, tried = contenders.cells, contenders.tried
    rows = {cell_id: row for row, cell_id in enumerate(compared["cell_id"])}
    p_within = {cell_id: contenders.choice.p_within[row] for cell_id, row in rows.items()}
    larger = tried[tried["global_batch_size"] > compared["global_batch_size"][today]]
    # The likeliest cell of each batch, else one that is ok.
    chances = larger["cell_id"].map(p_within).astype("float64").fillna(-1.0)
    ranked = larger.assign(chance=chances, not_ok=larger["status"] != Status.OK.value)
    ranked = ranked.sort_values(["global_batch_size", "chance", "not_ok"], ascending=[True, False, True], kind="stable")
    return tuple(
        LargerBatch(
            global_batch_size=int(cell["global_batch_size"]),
            cell_id=cell["cell_id"],
            name=cell_label(cell, contenders.further_axes),
            status=cell["status"],
            p_within_margin=float(p_within.get(cell["cell_id"], math.nan)),
            gain=gain_over(contenders, today, rows.get(cell["cell_id"])),
        )
        for cell in rows_of(ranked.drop_duplicates("global_batch_size"))
    )


def cheapest(contenders: Contenders, chosen: int) -> int | None:
    """Return the cell that costs the least, within TIE; None if the chosen one costs hardly more.

    It is one of those whose accuracy holds with probability SAFE; without any, one of all eligible cells.
    """
    cost = contenders.totals["cost"].means()
    is_eligible = ~np.isnan(contenders.choice.qualified) & ~np.isnan(cost)
    is_safe = is_eligible & (contenders.choice.p_within >= SAFE)
    eligible = np.where(is_safe if is_safe.any() else is_eligible, cost, np.nan)
    if np.isnan(cost[chosen]) or cost[chosen] <= (1 + TIE) * np.nanmin(eligible):
        return None
    return _likeliest(contenders, eligible <= (1 + TIE) * np.nanmin(eligible))


def best_value(contenders: Contenders, chosen: int) -> int | None:
    """Return the eligible cell with the least product of time and cost, within TIE.

    None on CPUs, without costs, and where the cost alone decides.
    """
    time, cost = (contenders.totals[name].means() for name in (contenders.deciding_time, "cost"))
    product = np.where(np.isnan(contenders.choice.qualified), np.nan, time * cost)
    by_cost = contenders.terms.report.objective == "cost"
    if contenders.on_cpu or by_cost or np.isnan(product).all():
        return None
    least = product <= (1 + TIE) * np.nanmin(product)
    return chosen if least[chosen] else _likeliest(contenders, least)


def _likeliest(contenders: Contenders, rows: npt.NDArray[np.bool_]) -> int:
    """Return which of these cells, which are equally good, is the likeliest within the margin."""
    return int(np.argmax(np.where(rows, np.nan_to_num(contenders.choice.p_within), -1.0)))


def gpu_counts(contenders: Contenders) -> Iterator[GpuCount]:
    """Yield the best cell for each number of GPUs tried, from the fewest to the most; none if there is one number.

    The rule is that of the recommendation, among the cells with that number; at the favourite's number it is the
    favourite.
    """
    choice, tried = contenders.choice, contenders.tried
    counts = sorted(set(tried["gpus"].astype("float64")))
    for gpus in counts if len(counts) > 1 else ():
        known = ~np.isnan(choice.log_objective.point) & (contenders.cells["gpus"].to_numpy(dtype="float64") == gpus)
        row = choice.favourite if choice.favourite is not None and known[choice.favourite] else choice.best_of(known)
        ok = (tried["gpus"] == gpus) & (tried["status"] == Status.OK.value)
        if row is not None:
            why = None
        elif known.any():
            likeliest = _likeliest(contenders, known)
            p_within = float(choice.p_within[likeliest])
            why = contenders.remark("none_keeps_margin", name=contenders.names[likeliest], p_within=p_within)
        elif not ok.any():
            why = remark("skipped_by_rule" if contenders.is_ruled_out(gpus) else "no_ok_cell")
        elif set(tried.loc[ok, "cell_id"]) <= contenders.eligible.without_metric:
            why = contenders.remark("none_has_metric")
        elif not contenders.measure.why and not tried.loc[ok, "n_reached"].any():
            why = contenders.remark("none_reaches_target")
        else:
            why = contenders.remark("none_has_figure")
        cell_id = None if row is None else str(contenders.cells["cell_id"][row])
        name = gpus_in_words(gpus, on_cpu=contenders.on_cpu)
        yield GpuCount(gpus=gpus, name=name, cell_id=cell_id, why_none=why)


@dataclass(frozen=True, kw_only=True)
class _Beside:
    """The rows that a recommendation names beside the chosen cell; none by default, as without a chosen cell."""

    safe: int | None = None  # the cell to use now, if that is another one
    cheapest: int | None = None
    best_value: int | None = None
    rivals: Sequence[int] = ()
    runner_up: Remark | None = None

    @staticmethod
    def of(contenders: Contenders, chosen: int) -> _Beside:
        safe = contenders.choice.safe
        return _Beside(
            safe=None if safe == chosen else safe,
            cheapest=cheapest(contenders, chosen),
            best_value=best_value(contenders, chosen),
            rivals=rivals(contenders, chosen),
            runner_up=runner_up(contenders, chosen),
        )


def decide(trials: pd.DataFrame, cells: pd.DataFrame, terms: Terms, claims: Sequence[Verdict] = ()) -> Recommendation:
    """Return the recommendation for frames of `analysis.trials.collect`, and verdicts on the claims of their sweep."""
    if terms.report.objective == NO_OBJECTIVE:
        headline, *details = [*too_few_workers(trials), *without_objective(trials, cells, claims)]
        return Recommendation(terms=terms, headline=headline, details=tuple(details), provisional=False)
    contenders = Contenders.of(trials, cells, terms)
    chosen, poor = contenders.chosen, contenders.poor_reference
    answer = no_cell(contenders) if chosen is None else chosen_cell(contenders, chosen)
    headline, *details = [*too_few_workers(trials), *answer]
    counts, steps = tuple(gpu_counts(contenders)), gpu_steps(contenders)
    beside = _Beside() if chosen is None else _Beside.of(contenders, chosen)
    ids = contenders.cells["cell_id"].astype(str).tolist()
    rows = (beside.safe, beside.cheapest, beside.best_value, poor, *beside.rivals)
    named = [ids[row] for row in rows if row is not None]
    named += [count.cell_id for count in counts if count.cell_id]
    named += [cell.cell_id for step in steps for cell in step.cells]
    named += [ids[contenders.names.index(step.name_of_fewer)] for step in steps if step.name_of_fewer]
    named += [beside.runner_up.values["cell_id"]] if beside.runner_up else []
    outcome = Recommendation(
        terms=terms,
        measure=contenders.measure.name,
        tokens=terms.budget.get("tokens") if cells["global_batch_size"].nunique() > 1 else None,
        common_baseline_id=_id(contenders, contenders.baseline),
        poor_reference_cell_id=_id(contenders, poor),
        headline=headline,
        details=tuple(details),
        verdict=UNDECIDED,
        provisional=True,
        gpu_counts=counts,
        gpu_steps=steps,
        on_cpu=contenders.on_cpu,
        deciding_time=contenders.deciding_time,
        left_out=tuple(contenders.eligible.left_out),
        shortlist=shortlist(contenders, named),
        probabilities={
            cell_id: (float(contenders.choice.p_within[row]), contenders.p_best(row)) for row, cell_id in enumerate(ids)
        },
    )
    if chosen is not None:
        return _with_choice(outcome, contenders, chosen, beside)
    # A repetition can only help against load from outside; the headline names other remedies.
    is_disturbed = answer[0].values.get("fault") in (Fault.DISTURBED.value, Fault.STRAGGLER.value)
    return replace(outcome, commands=(settle_command(terms.arguments),) if is_disturbed else ())


def _id(contenders: Contenders, row: int | None) -> str | None:
    return None if row is None else str(contenders.cells["cell_id"][row])


def _with_choice(outcome: Recommendation, contenders: Contenders, chosen: int, beside: _Beside) -> Recommendation:
    """Return the recommendation with its verdict, its doubts, and what is beside the chosen cell."""
    choice, rival_ids = contenders.choice, [_id(contenders, row) for row in beside.rivals]
    doubtful = tuple(caveats(contenders, chosen))
    asked, needed = further_seeds(contenders, chosen)
    times_again = contenders.timed_once(chosen) or any(doubt.code == "straggler" for doubt in doubtful)
    sure = choice.is_sure(contenders.p_best(chosen)) and not doubtful
    when_sure = SPEED_ONLY if contenders.baseline is None else CLEAR
    today = chosen if sure or beside.safe is None else beside.safe
    return replace(
        outcome,
        cell_id=_id(contenders, chosen),
        name=contenders.names[chosen],
        safe_cell_id=_id(contenders, beside.safe),
        cheapest_cell_id=_id(contenders, beside.cheapest),
        best_value_cell_id=_id(contenders, beside.best_value),
        larger_batches=larger_batches(contenders, today),
        runner_up=beside.runner_up,
        verdict=when_sure if sure else TIED if choice.ties_with(chosen).any() else UNDECIDED,
        rivals=tuple(cell for cell_id in rival_ids for cell in outcome.shortlist if cell.cell_id == cell_id),
        provisional=bool(doubtful) or contenders.baseline is None,
        caveats=doubtful,
        p_best=contenders.p_best(chosen),
        p_within_margin=float(choice.p_within[chosen]),
        behind=choice.behind if contenders.is_compared else math.nan,
        reasons=tuple(reasons(contenders)),
        sensitivity=(*sensitivity(contenders, chosen), *unsettled(contenders, chosen)),
        more_seeds=tuple(
            MoreSeeds(
                cell_id=str(_id(contenders, row)), name=contenders.names[row], seeds=needed - len(contenders.seeds[row])
            )
            for row in asked
        ),
        commands=(settle_command(outcome.terms.arguments),) if asked or times_again else (),
    )
