"""Explains a decision as remarks: the headline, the reasons, what makes it provisional, and what would change it.

A remark is a code with its values (`decision.recommendation.Remark`); `tables/recommendation.md.j2` has a sentence for
each code. Nothing here chooses a cell: `decision.choice` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.by_seed import by_seed
from orchestrator.analysis.summary import superlinear_causes
from orchestrator.analysis.validity import is_untrained, launch_bound
from orchestrator.analysis.work import is_short
from orchestrator.config.request import VAL_ACCURACY
from orchestrator.decision.candidates import Contenders
from orchestrator.decision.eligibility import speed_is_known
from orchestrator.decision.gpu_steps import best_with_fewest, gain_over
from orchestrator.decision.recommendation import Remark, remark
from orchestrator.decision.same_batch import factors_of_speedup
from orchestrator.decision.thresholds import FEWEST_SEEDS, NOTICED, SHOWN, TIE
from orchestrator.statistics import margins
from orchestrator.statistics.intervals import Moments, jeffreys
from orchestrator.text.cell_labels import cell_label, named
from sweeps.status import Status
from sweeps.sweep import STANDARD_AXES

_ROUNDED = 1e-6
"""Seeds that differ by less than this part of their metric differ by rounding."""

_OF_FRACTIONS = 0.1
"""A margin below this is meant for accuracies that are fractions of 1."""

_MOST = 3
"""Maximum number of remarks of one kind."""


def chosen_cell(contenders: Contenders, row: int) -> list[Remark]:
    """Return remarks on the chosen cell: its axes and its objective beside the baseline's."""
    baseline = contenders.baseline
    cell = contenders.rows[row]
    other = None if baseline in (None, row) or math.isnan(contenders.objectives[baseline]) else baseline
    costs = contenders.totals["cost"].means()
    cost = math.nan if other is None or contenders.on_cpu else float(costs[row] / costs[other])
    of_gpus, of_batch = (float(factor[row]) for factor in factors_of_speedup(contenders))
    # Where one number of GPUs was tried, or only the learning rate differs, there is nothing to divide.
    is_divided = contenders.tried["gpus"].nunique() > 1 and (of_gpus, of_batch) != (1.0, 1.0)
    # The sentence has the learning rate, which tells the multiplier; some rules have none.
    axes = [axis for axis in contenders.further_axes if axis != "lr_multiplier" or pd.isna(cell["lr"])]
    # A baseline with the same further axes needs only what all names have.
    is_alike = other is not None and named(contenders.rows[other], axes) == named(cell, axes)
    of_other = None if other is None else cell_label(contenders.rows[other], [] if is_alike else axes)
    # The rate alone tells apart cells that differ in nothing else.
    if other is not None and is_alike and of_other == cell_label(cell):
        of_other += f", LR {contenders.rows[other]['lr']:.3g}"
    first = contenders.remark(
        "fastest" if baseline is None else "use",
        cell={key: cell[key] for key in ("gpus", "device", "device_batch_size", "lr", "lr_rule")},
        name=cell_label(cell, axes),
        unit=contenders.measure.unit,
        objective=contenders.objectives[row],
        baseline=of_other,
        of_baseline=None if other is None else contenders.objectives[other],
        gain=gain_over(contenders, other, row),
        of_gpus=of_gpus if is_divided else math.nan,
        of_batch=of_batch if is_divided else math.nan,
        # The rate decides the time to a target, too.
        rest_is_batch=bool(contenders.measure.why) and set(contenders.terms.axes) <= {*STANDARD_AXES},
        cost=cost if cost > 1 + TIE else math.nan,
    )
    later = superlinear(contenders.tried, cell)
    if contenders.ends_later:
        later.append(contenders.ends_later)
    if baseline is None:
        return [first, *later, *_without_accuracy(contenders, row)]
    reference = contenders.poor_reference
    if reference is None:
        return [first, *([remark("is_baseline")] if baseline == row else []), *later]
    difference = float(contenders.choice.score_difference.point[reference])
    poor = contenders.remark(
        "poor_reference",
        name=contenders.names[reference],
        baseline=None if row == baseline else contenders.names[baseline],
        difference=difference,
        margins=-difference / contenders.measurements.margin,
        objective=None if math.isnan(contenders.objectives[reference]) else contenders.objectives[reference],
        of_chosen=contenders.objectives[row],
    )
    return [first, poor, *later]


def superlinear(cells: pd.DataFrame, cell: Mapping[Any, Any]) -> list[Remark]:
    """Return a remark if the scaling of one of the cells is more than linear, with the likely cause."""
    cause = dict(zip(cells["cell_id"], superlinear_causes(cells), strict=True))[cell["cell_id"]]
    return [remark("superlinear", efficiency=float(cell["efficiency"]), cause=cause)] if cause else []


def _without_accuracy(contenders: Contenders, row: int) -> list[Remark]:
    """Return what is known of a cell if no trial reports a validation accuracy."""
    cell = contenders.rows[row]
    accuracy = contenders.cells["accuracy"].mask(is_untrained(contenders.cells))
    remarks = []
    is_known = speed_is_known(contenders.tried, cell["cell_id"], cell["baseline_cell_id"])
    if is_known and cell["cell_id"] != cell["baseline_cell_id"] and not math.isnan(cell["speedup"]):
        remarks.append(remark("scaling", **scaling_of(cell)))
    remarks.append(contenders.remark("accuracy_unknown", on_test_set=not contenders.tried["accuracy"].isna().all()))
    own = float(accuracy[row])
    if not math.isnan(own) and (top := int(np.nanargmax(accuracy))) != row:  # the fastest may not be the best
        remarks.append(remark("test_accuracy", own=own, highest=float(accuracy[top]), name=contenders.names[top]))
    return remarks


def scaling_of(cell: Mapping[Any, Any]) -> dict[str, float]:
    """Return a cell's scaling with the ends of its interval, which are NaN with one seed."""
    columns = {"scaling": "speedup", "lo": "speedup_lo", "hi": "speedup_hi"}
    return {name: float(cell[column]) for name, column in columns.items()}


def reasons(contenders: Contenders) -> Iterator[Remark]:
    """Return why the chosen cell was chosen, and what was not considered."""
    choice, compared = contenders.choice, contenders.baseline is not None
    count, tied = len(contenders.candidates), int(choice.tied.sum())
    ranked = {"count": count, "compared": compared}
    if count == 1:
        yield remark("only_cell")
    elif compared and tied > 1:
        code = "all_tie" if tied == (choice.qualifies).sum() else "ties"
        yield contenders.remark(code, **ranked, tied=tied, by=_tie_break(contenders))
    else:
        yield contenders.remark("least", **ranked)
    if compared and choice.favourite is not None and choice.excess[choice.favourite] > 0:
        yield contenders.remark("within_by_pooling")
    if contenders.measure.why:
        yield remark("no_target", why=contenders.measure.why)
    if worse := int((choice.p_within < SHOWN).sum()):
        yield contenders.remark("shown_worse", count=worse)
    if contenders.eligible.left_out:
        yield remark("not_considered", left_out=contenders.eligible.left_out)
    row, poor_reference = contenders.baseline, contenders.poor_reference
    at_reference = contenders.cells["cell_id"] == contenders.cells["reference_cell_id"]
    if row is not None and poor_reference is None and not at_reference[row]:
        yield contenders.remark("no_reference")


def _tie_break(contenders: Contenders) -> str:
    """Return what decided among the cells that may be the best: `hours`, `accuracy`, `pooled` or `certainty`."""
    choice, chosen = contenders.choice, contenders.choice.favourite or 0
    accuracy = choice.score_difference.point
    others = np.flatnonzero(choice.tied).tolist()
    if any(choice.needs_more_hours(row, chosen) for row in others):
        return "hours"
    if not (accuracy[others] > accuracy[chosen]).any():
        return "accuracy"
    pooled = choice.pooled_difference
    return "certainty" if (pooled[others] > pooled[chosen]).any() else "pooled"


def why_not(contenders: Contenders, chosen: int | None, row: int) -> Remark | None:
    """Return why a cell is not the one to use; None for the chosen one."""
    choice = contenders.choice
    level, accuracy = choice.log_objective.point, choice.score_difference.point
    if row == chosen:
        return None
    if contenders.cells["cell_id"][row] in contenders.eligible.without_metric:
        return contenders.remark("metric_unknown")
    if math.isnan(level[row]):
        return contenders.remark("objective_unknown")
    if chosen is None and choice.keeps_accuracy[row]:
        better = list(contenders.seem_better.values())
        return remark("better_is_untimed", name=better[0]) if better else remark("no_speed_of_baseline")
    if chosen is None or not choice.keeps_accuracy[row]:
        return contenders.remark("accuracy_too_low", **_accuracy(contenders, row))
    name = contenders.names[chosen]
    above = level[row] - level[chosen]
    if above > math.log1p(TIE):
        return contenders.remark("above_chosen", by=math.expm1(above), name=name)
    if choice.needs_more_hours(row, chosen):
        ratio = math.exp(choice.measurements.log_cost[row] - choice.measurements.log_cost[chosen])
        return remark("needs_more_hours", ratio=ratio, name=name, on_cpu=contenders.on_cpu)
    if accuracy[chosen] > accuracy[row]:
        reason = "more_accurate"
    else:
        reason = "needs_no_more" if above >= 0 else "more_certain"
    by = float(accuracy[chosen] - accuracy[row])
    return contenders.remark("ties_with_chosen", name=name, why=reason, by=by)


def runner_up(contenders: Contenders, chosen: int) -> Remark | None:
    """Return how the next eligible cell compares with the chosen one; None if no other cell is eligible."""
    choice = contenders.choice
    noticed = np.where(choice.p_best >= NOTICED, choice.p_best, 0.0)
    # Smaller probabilities are noise of the draws, so that the objective ranks the cells that have them.
    ranked = [row for row in np.lexsort([choice.log_objective.point, -noticed]).tolist() if row != chosen]
    row = next((row for row in ranked if choice.qualifies[row]), None)
    if row is None:
        return None
    return contenders.remark(
        "runner_up",
        cell_id=str(contenders.cells["cell_id"][row]),
        name=contenders.names[row],
        ratio=gain_over(contenders, row, chosen),
        p_best=float(choice.p_best[row]),
        why=why_not(contenders, chosen, row),
    )


def _accuracy(contenders: Contenders, row: int, *, is_estimated: bool = False) -> dict[str, Any]:
    """Return a cell's accuracy difference, its probability of being within the margin, and how the two fit together.

    `estimate` is the difference judged together with similar cells, if `is_estimated` or if only the cell's own mean
    keeps the margin; NaN otherwise, or if it reads as the cell's own.
    """
    choice = contenders.choice
    own, pooled = float(choice.score_difference.point[row]), float(choice.pooled_difference[row])
    only_own_is_within = choice.excess[row] <= 0 < choice.measurements.excess(-pooled)
    return {
        "difference": own,
        "p_within": float(choice.p_within[row]),
        "estimate": pooled if (is_estimated and f"{pooled:.3f}" != f"{own:.3f}") or only_own_is_within else math.nan,
    }


def sensitivity(contenders: Contenders, chosen: int) -> Iterator[Remark]:
    """Return margins that would admit a better cell, cells that may prove better, and axes worth extending."""
    level, choice = contenders.choice.log_objective.point, contenders.choice
    common = {"unit": contenders.measure.unit, "of_chosen": contenders.objectives[chosen]}
    poor = contenders.poor_reference
    readmits = math.inf if poor is None else -float(choice.score_difference.point[poor]) / margins.IMPLAUSIBLE
    faster = np.flatnonzero((level < level[chosen] - math.log1p(TIE)) & (choice.pooled_difference < 0)).tolist()
    for row in sorted(faster, key=lambda row: -choice.pooled_difference[row])[:_MOST]:
        lets_in = _rounded_up(-choice.pooled_difference[row])
        if lets_in >= readmits:  # with that margin, the cell at the reference batch would be the baseline
            continue
        accuracy = _accuracy(contenders, row, is_estimated=True)  # by which the cell qualifies
        yield contenders.remark("wider_margin", **common, **_named(contenders, row), **accuracy, lets_in=lets_in)
    collapsed = (contenders.measurements.collapses.hits > 0) & (level < level[chosen] - math.log1p(TIE))
    for row in np.flatnonzero(collapsed).tolist()[:_MOST]:
        yield _collapsed(contenders, row, "collapsed_rival")
    rivals = [row for row in np.argsort(-choice.p_best).tolist() if row != chosen and choice.p_best[row] >= NOTICED]
    for row in rivals[:_MOST]:
        chance = {"p_best": float(choice.p_best[row]), "difference": float(choice.score_difference.point[row])}
        yield contenders.remark("rival", **common, **_named(contenders, row), **chance)
    cell = contenders.rows[chosen]
    if contenders.tried["gpus"].nunique() == 1:
        yield remark("one_gpu_count", gpus=cell["gpus"])
    for axis in ("gpus", "global_batch_size", "lr_multiplier"):
        least, most = contenders.tried[axis].min(), contenders.tried[axis].max()
        if least < most and (cell[axis] == most or (axis == "lr_multiplier" and cell[axis] == least)):
            at_most = bool(cell[axis] == most)
            yield remark("at_the_edge", axis=axis, value=cell[axis], largest=at_most, on_cpu=contenders.on_cpu)
    if (launch_bound(contenders.cells) & contenders.cells["n_processes"].fillna(1).eq(1))[chosen]:
        yield remark("launch_bound", share=cell["launch_share"])


def _named(contenders: Contenders, row: int) -> dict[str, Any]:
    return {"name": contenders.names[row], "objective": float(contenders.objectives[row])}


def _rounded_up(value: float) -> float:
    """Round up to two digits, so that as a margin the result admits a loss of this size."""
    digits = 1 - math.floor(math.log10(value))
    return float(math.ceil(round(value * 10**digits, 6)) / 10**digits)


def caveats(contenders: Contenders, chosen: int) -> Iterator[Remark]:
    """Return what makes the recommendation provisional."""
    p_best, p_within = float(contenders.choice.p_best[chosen]), float(contenders.choice.p_within[chosen])
    fewest = contenders.fewest_seeds
    compared = not math.isnan(contenders.choice.score_difference.point[chosen])
    chance_unknown = math.isnan(p_best) and fewest < 2
    for row in dict.fromkeys([chosen, contenders.baseline]):
        if row is not None and contenders.measurements.collapses.hits[row]:
            yield _collapsed(contenders, row, "baseline_collapsed" if row != chosen else "collapsed")
    if chance_unknown:
        yield remark("one_seed")
    elif fewest < FEWEST_SEEDS:
        yield remark("few_seeds", seeds=fewest, all_cells=fewest == contenders.candidates["n_ok"].max())
    if contenders.terms.unfinished:
        yield remark("unfinished")
    # A short cell is chosen only where every candidate is short.
    if is_short(contenders.cells["work_done"])[chosen]:
        yield remark("short_work", share=float(contenders.cells["work_done"][chosen]))
    yield from _ended_later(contenders, chosen)
    yield from _few_timings(contenders, chosen)
    if not contenders.is_compared:
        yield remark("nothing_to_compare")
    chances = {"p_best": p_best, "p_within": p_within} if compared else {"p_best": p_best}
    unsure = {name: chance for name, chance in chances.items() if not contenders.choice.is_sure(chance)}
    # A cell is the best only if it holds the metric: where nothing else is open, its speed is no further question.
    if "p_within" in unsure and p_within > 0 and contenders.choice.is_sure(p_best / p_within):
        unsure.pop("p_best", None)
    choice = contenders.choice
    if unsure and not chance_unknown:
        values = {"needed": choice.needed_probability, "uneven_seeds": choice.has_uneven_seeds}
        yield contenders.remark("unsure", chances=unsure, **values)
    if choice.most_accurate is not None and contenders.measurements.excess(choice.below_best) > 0:
        best = contenders.names[choice.most_accurate]
        yield contenders.remark("below_best", by=choice.below_best, name=best)
    if contenders.measure.why == "target_missed":
        yield remark("target_missed")
    yield from _doubtful_margin(contenders, compared=compared)
    steps = contenders.candidates.loc[is_untrained(contenders.candidates), "steps"]
    if compared and len(steps) and int(steps.min()):
        yield contenders.remark("untrained", steps=int(steps.min()))


def _ended_later(contenders: Contenders, chosen: int) -> Iterator[Remark]:
    """Return the first cell, of the baseline and the best with the fewest GPUs, that ended earlier in all seeds."""
    if contenders.terms.report.objective != "time":
        return
    ok = contenders.trials[contenders.trials["status"] == Status.OK.value]
    ended_s = by_seed(contenders.cells["cell_id"], ok, "total_s")
    for other in dict.fromkeys([contenders.baseline, best_with_fewest(contenders)]):
        if other is None or other == chosen:
            continue
        difference = ended_s[chosen] - ended_s[other]
        later = difference[~np.isnan(difference)]
        if len(later) and (later > 0).all():
            yield remark("ended_later", n=len(later), name=contenders.names[other], by=float(later.mean()))
            return


def _doubtful_margin(contenders: Contenders, *, compared: bool) -> Iterator[Remark]:
    """Return why the seeds' metrics, or the samples that they are of, do not suit the margin."""
    measurements, metric = contenders.measurements, contenders.metric
    moments = Moments.of(measurements.accuracy)
    several = moments.n >= 2
    typical = float(np.nanmedian(np.abs(moments.mean))) if compared else math.nan
    is_percent = metric.name == VAL_ACCURACY.name and measurements.margin < _OF_FRACTIONS and typical > 1
    if is_percent:
        yield contenders.remark("margin_of_fractions", typical=typical)
    if several.any() and (np.sqrt(moments.variance) <= _ROUNDED * np.abs(moments.mean))[several].all():
        yield contenders.remark("seeds_without_effect")
    elif several.any() and not is_percent:
        # Collapsed seeds have a caveat of the chosen cell, and do not tell how others vary.
        spread = float(np.sqrt(np.nanmean(Moments.of(measurements.uncollapsed).variance)))
        if spread > margins.IMPLAUSIBLE * measurements.margin:
            yield contenders.remark("margin_too_small", spread=spread)
    if measurements.margin > typical / 2:
        yield contenders.remark("margin_too_large", typical=typical)
    if compared and measurements.samples < 2 / measurements.margin:
        yield contenders.remark("few_samples", samples=int(measurements.samples))


def _few_timings(contenders: Contenders, chosen: int) -> Iterator[Remark]:
    """Return which cells have stragglers, of the chosen one and its baseline, or a chosen cell with only one timing."""
    for row in dict.fromkeys([chosen, contenders.baseline]):
        if row is not None and contenders.stragglers[row]:
            counts = {"timed": int(contenders.n_timed[row]), "n": int(contenders.cells["n_ok"][row])}
            stragglers = int(contenders.stragglers[row])
            yield remark("straggler", of_baseline=row != chosen, stragglers=stragglers, **counts)
    if not contenders.stragglers[chosen] and contenders.timed_once(chosen):
        yield remark("timed_once", n=int(contenders.cells["n_ok"][chosen]))


def _collapsed(contenders: Contenders, row: int, code: str) -> Remark:
    """Return how many seeds of a cell collapsed, by how much, and which share of seeds that may be."""
    collapses = contenders.measurements.collapses
    hits, n = float(collapses.hits[row]), float(collapses.n[row])
    lo, hi = jeffreys(hits, n)
    share = {"hits": int(hits), "n": int(n), "lo": float(lo), "hi": float(hi)}
    return contenders.remark(code, name=contenders.names[row], drop=float(collapses.drop[row]), **share)
