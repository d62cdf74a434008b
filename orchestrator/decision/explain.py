"""Explains a decision as remarks: the headline, the reasons, what makes it provisional, and what would change it.

A remark is a code with its values (`decision.recommendation.Remark`); `tables/recommendation.md.j2` has a sentence for
each code. Nothing here chooses a cell: `decision.choice` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis.validity import is_untrained, is_valid, launch_bound
from orchestrator.decision.candidates import UNSOUND, Contenders
from orchestrator.decision.choice import SHOWN, TIE
from orchestrator.decision.recommendation import FEWEST_SEEDS, NOTICED, Remark, is_sure, remark
from orchestrator.decision.verdicts import CONFIRMED, INCONCLUSIVE, REFUTED, Verdict
from orchestrator.statistics.intervals import Moments
from orchestrator.statistics.outliers import share_interval
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text.rows import cell_label, varying
from sweeps.status import Status

_MOST_NAMED = 2
"""How many cells a sentence names besides the first."""

_MOST = 3
"""Maximum number of remarks of one kind."""


def chosen_cell(found: Contenders, row: int, code: str = "use") -> list[Remark]:
    """Return remarks on a cell: its axes and its objective beside the baseline's. `code` is the first one's."""
    baseline = found.contest.baseline
    cell = found.cells.to_dict("records")[row]
    other = None if baseline in (None, row) or math.isnan(found.objectives[baseline]) else baseline
    cost = found.totals["cost"].means()
    first = remark(
        "fastest" if baseline is None else code,
        cell={key: cell[key] for key in ("gpus", "device", "device_batch_size", "global_batch_size", "lr_rule")},
        name=found.names[row],
        measure=found.measure.name,
        unit=found.measure.unit,
        objective=found.objectives[row],
        of_baseline=None if other is None else found.objectives[other],
        cost=math.nan if other is None or found.on_cpu else float(cost[row] / cost[other]),
    )
    later = [found.ends_later] if found.ends_later else []
    if baseline is None:
        return [first, *later, *_without_accuracy(found, row)]
    if found.poor_reference is not None:
        return [first, _poor_reference(found, row, found.poor_reference), *later]
    return [first, *([remark("is_baseline")] if baseline == row else []), *later]


def _poor_reference(found: Contenders, row: int, reference: int) -> Remark:
    """Return why a cell at the reference batch is not the baseline, and how its objective compares with `row`'s."""
    difference = float(found.choice.accuracy_difference.point[reference])
    return remark(
        "poor_reference",
        metric=found.metric,
        name=found.names[reference],
        baseline=None if row == found.contest.baseline else found.names[found.contest.baseline or 0],
        difference=difference,
        margins=-difference / found.contest.margin,
        measure=found.measure.name,
        objective=None if math.isnan(found.objectives[reference]) else found.objectives[reference],
        of_chosen=found.objectives[row],
    )


def too_few_workers(trials: pd.DataFrame) -> list[Remark]:
    """Return a remark if no trial with several GPUs trained on all of them: then nothing is known about more GPUs."""
    several = trials[(trials["gpus"] > 1) & (trials["status"] == Status.OK.value)]
    if several.empty or not (several["timing_fault"] == Fault.TOO_FEW_WORKERS.value).all():
        return []
    on_cpu = bool((several["device"] == "cpu").all())
    return [remark("too_few_workers", on_cpu=on_cpu, note=str(several["note"].iloc[0]).split("; ")[0])]


def _without_accuracy(found: Contenders, row: int) -> list[Remark]:
    """Return what is known of a cell if no trial reports a validation accuracy."""
    cell, accuracy = found.cells.to_dict("records")[row], found.cells["accuracy"].mask(is_untrained(found.cells))
    remarks = []
    if cell["cell_id"] != cell["baseline_cell_id"] and not math.isnan(cell["speedup"]):
        remarks.append(remark("speedup", value=float(cell["speedup"])))
    remarks.append(accuracy_unknown(found))
    own = float(accuracy[row])
    if not math.isnan(own) and (top := int(np.nanargmax(accuracy))) != row:  # the fastest may not be the best
        remarks.append(remark("test_accuracy", own=own, highest=float(accuracy[top]), name=found.names[top]))
    return remarks


def accuracy_unknown(found: Contenders) -> Remark:
    """Return the remark that accuracies cannot be compared."""
    return remark("accuracy_unknown", metric=found.metric, on_test_set=not found.tried["accuracy"].isna().all())


def no_cell(found: Contenders) -> list[Remark]:
    """Return remarks on why no cell is recommended."""
    favourite, left_out = found.choice.favourite, found.left_out
    not_considered = [remark("not_considered", left_out=left_out)] if left_out else []
    if favourite is not None and found.seem_better:
        return [*_untimed_is_better(found, favourite), *not_considered]
    if favourite is not None:
        cell = found.cells.loc[favourite]
        why = {"note": str(cell["note"]).rstrip("."), "fault": cell["timing_fault"]}
        return [remark("nothing_timed", **why), *chosen_cell(found, favourite, "seems_best"), *not_considered]
    if len(found.candidates):
        name = found.names[found.contest.baseline or 0]
        return [
            remark("none_within_margin", metric=found.metric, margin=found.contest.margin, baseline=name),
            *not_considered,
        ]
    if found.commonest_end:
        return [remark("none_ok", left_out=left_out), found.commonest_end]
    to_report = found.measure.unit == "s" and any(each.code == "no_figure" for each in left_out)
    return [remark("none_measured", left_out=left_out, measure=found.measure.name, to_report=to_report)]


def _untimed_is_better(found: Contenders, favourite: int) -> list[Remark]:
    """Return which cells seem better than the best one with a valid timing, and how to find out."""
    first, *others = found.seem_better
    lead = remark(
        "untimed_is_better",
        name=first.name,
        cell_id=first.cell_id,
        measure=found.measure.name,
        unit=found.measure.unit,
        objective=first.objective,
        favourite=found.names[favourite],
        of_favourite=found.objectives[favourite],
        note=first.note,
        fault=first.fault,
    )
    named = [{"name": each.name, "objective": each.objective} for each in others[:_MOST_NAMED]]
    more = len(others) - len(named)
    unknown = [accuracy_unknown(found)] if found.contest.baseline is None else []
    also = remark("others_seem_better", cells=named, more=more, unit=found.measure.unit, first=first.objective)
    return [lead, *unknown, *([also] if named else [])]


def without_objective(cells: pd.DataFrame, judged: Sequence[Verdict]) -> list[Remark]:
    """Return the outcome of the claims and the largest speed-up among the cells of a summary."""
    verdicts = [verdict.verdict for verdict in judged]
    counts = {verdict: verdicts.count(verdict) for verdict in (CONFIRMED, REFUTED, INCONCLUSIVE)}
    claims = [remark("claims", counts={name: count for name, count in counts.items() if count})] if judged else []
    return [*claims, *_largest_speedup(cells), remark("not_requested")]


def _largest_speedup(cells: pd.DataFrame) -> list[Remark]:
    """Return the largest speed-up over a baseline with fewer GPUs, preferably of valid timings."""
    gpus = cells.set_index("cell_id")["gpus"]
    more = cells["gpus"] > gpus.reindex(cells["baseline_cell_id"]).to_numpy()
    scaled = cells[more & cells["speedup"].notna()]
    valid = is_valid(scaled["timing_valid"])
    if scaled.empty:
        return []
    scaled = scaled[valid] if valid.any() else scaled
    row = scaled.to_dict("records")[int(scaled["speedup"].to_numpy().argmax())]
    figures = {key: row[key] for key in ("speedup", "speedup_lo", "speedup_hi", "efficiency")}
    return [remark("largest_speedup", **figures, name=cell_label(row, varying(cells)), valid=bool(valid.any()))]


def reasons(found: Contenders) -> Iterator[Remark]:
    """Return why the chosen cell was chosen, and what was not considered."""
    choice, margin, compared = found.choice, found.contest.margin, found.contest.baseline is not None
    count, tied = len(found.candidates), int(choice.tied.sum())
    ranked = {"metric": found.metric, "measure": found.measure.name, "count": count, "compared": compared}
    if count == 1:
        yield remark("only_cell")
    elif compared and tied > 1:
        code = "all_tie" if choice.all_tie else "ties"
        yield remark(code, **ranked, tied=tied, of_sure=not choice.by_accuracy)
    else:
        yield remark("least", **ranked)
    if compared and choice.favourite is not None and choice.accuracy_difference.point[choice.favourite] < -margin:
        yield remark("within_by_pooling", metric=found.metric, margin=margin)
    if found.measure.why:
        yield remark("no_target", why=found.measure.why)
    if worse := int((choice.p_within < SHOWN).sum()):
        yield remark("shown_worse", metric=found.metric, count=worse, margin=margin)
    if found.left_out:
        yield remark("not_considered", left_out=found.left_out)
    if compared and not found.at_reference and found.poor_reference is None:
        yield remark("no_reference", metric=found.metric)


def why_not(found: Contenders, chosen: int | None, row: int) -> Remark | None:
    """Return why a cell is not the one to use; None for the chosen one."""
    level, choice, measure = found.choice.log_objective.point, found.choice, found.measure.name
    if row == chosen:
        return None
    if found.cells["cell_id"][row] in found.without_metric:
        return remark("metric_unknown", metric=found.metric)
    if math.isnan(level[row]):
        return remark("objective_unknown", measure=measure)
    if chosen is None and choice.passes[row]:
        better = found.seem_better
        return remark("better_is_untimed", name=better[0].name) if better else remark("no_timing_valid")
    if chosen is None or not choice.passes[row]:
        return remark("accuracy_too_low", **_accuracy(found, row))
    above = level[row] - level[chosen]
    if above > math.log1p(TIE):
        return remark("above_chosen", measure=measure, by=math.expm1(above), name=found.names[chosen])
    accuracy = choice.accuracy_difference.point
    if choice.by_accuracy and accuracy[chosen] > accuracy[row]:
        why = "more_accurate"
    else:
        why = "needs_no_more" if above >= 0 and choice.by_accuracy else "more_certain"
    by = float(accuracy[chosen] - accuracy[row])
    return remark("ties_with_chosen", metric=found.metric, measure=measure, name=found.names[chosen], why=why, by=by)


def _accuracy(found: Contenders, row: int, lets_in: float = math.inf) -> dict[str, Any]:
    """Return a cell's accuracy difference, its probability of being within the margin, and how the two fit together.

    `pooled` is true if similar cells explain why the cell's own mean keeps the margin and yet the cell is not likely
    to, or why a margin of `lets_in` admits the cell although the cell's own mean loses more.
    """
    own, pooled = (
        float(each[row]) for each in (found.choice.accuracy_difference.point, found.choice.pooled_difference)
    )
    return {
        "metric": found.metric,
        "difference": own,
        "margin": found.contest.margin,
        "p_within": float(found.choice.p_within[row]),
        "pooled": bool(own >= -found.contest.margin > pooled or -own > lets_in + 1e-9),
    }


def sensitivity(found: Contenders, chosen: int) -> Iterator[Remark]:
    """Return margins that would admit a better cell, cells that may prove better, and axes worth extending."""
    level, choice = found.choice.log_objective.point, found.choice
    common = {"unit": found.measure.unit, "of_chosen": found.objectives[chosen]}
    poor = found.poor_reference
    readmits = math.inf if poor is None else -float(choice.accuracy_difference.point[poor]) / UNSOUND
    faster = np.flatnonzero((level < level[chosen] - math.log1p(TIE)) & (choice.pooled_difference < 0)).tolist()
    for row in sorted(faster, key=lambda row: -choice.pooled_difference[row])[:_MOST]:
        lets_in = _rounded_up(-choice.pooled_difference[row])
        if lets_in >= readmits:  # with that margin, the cell at the reference batch would be the baseline
            continue
        accuracy = _accuracy(found, row, lets_in)
        yield remark("wider_margin", **common, **_named(found, row), **accuracy, lets_in=lets_in)
    unsound = (found.contest.lost.hits > 0) & (level < level[chosen] - math.log1p(TIE))
    for row in np.flatnonzero(unsound).tolist()[:_MOST]:
        yield _collapsed(found, row, "collapsed_rival")
    rivals = [row for row in np.argsort(-choice.p_best).tolist() if row != chosen and choice.p_best[row] >= NOTICED]
    for row in rivals[:_MOST]:
        chance = {"p_best": float(choice.p_best[row]), "difference": float(choice.accuracy_difference.point[row])}
        yield remark("rival", metric=found.metric, **common, **_named(found, row), **chance)
    cell = found.cells.loc[chosen]
    if found.tried["gpus"].nunique() == 1:
        yield remark("one_gpu_count", gpus=cell["gpus"])
    for axis in ("gpus", "global_batch_size", "lr_multiplier"):
        least, most = found.tried[axis].min(), found.tried[axis].max()
        if least < most and (cell[axis] == most or (axis == "lr_multiplier" and cell[axis] == least)):
            yield remark("at_the_edge", axis=axis, value=cell[axis], largest=bool(cell[axis] == most))
    if (launch_bound(found.cells) & found.cells["n_processes"].fillna(1).eq(1))[chosen]:
        yield remark("launch_bound", share=cell["launch_share"])


def _named(found: Contenders, row: int) -> dict[str, Any]:
    return {"name": found.names[row], "objective": float(found.objectives[row])}


def _rounded_up(value: float) -> float:
    """Round up to two digits, so that as a margin the result admits a loss of this size."""
    digits = 1 - math.floor(math.log10(value))
    return float(math.ceil(round(value * 10**digits, 6)) / 10**digits)


def caveats(found: Contenders, chosen: int) -> Iterator[Remark]:
    """Return what makes the recommendation provisional."""
    p_best, p_within = float(found.choice.p_best[chosen]), float(found.choice.p_within[chosen])
    fewest = int(found.candidates["n_ok"].min())
    compared = not math.isnan(found.choice.accuracy_difference.point[chosen])
    chance_unknown = math.isnan(p_best) and fewest < 2
    for row in dict.fromkeys([chosen, found.contest.baseline]):
        if row is not None and found.contest.lost.hits[row]:
            yield _collapsed(found, row, "baseline_collapsed" if row != chosen else "collapsed")
    if chance_unknown:
        yield remark("one_seed")
    elif fewest < FEWEST_SEEDS:
        yield remark("few_seeds", seeds=fewest, all_cells=fewest == found.candidates["n_ok"].max())
    if found.unfinished:
        yield remark("unfinished")
    if not found.are_timed:
        yield remark("timings_disturbed", count=found.untimed_candidates, cells=len(found.candidates))
    yield from _few_timings(found, chosen)
    if len(found.candidates) == 1:
        yield remark("nothing_to_compare")
    if not chance_unknown and not is_sure(p_best):
        yield remark("may_not_be_best", p_best=p_best)
    if not chance_unknown and compared and not is_sure(p_within):
        yield remark("may_miss_margin", metric=found.metric, p_within=p_within)
    if found.measure.why == "target_missed":
        yield remark("target_missed")
    moments = Moments.of(found.contest.accuracy)
    several = moments.n >= 2
    if several.any() and (moments.variance[several] == 0).all():
        yield remark("seeds_without_effect", metric=found.metric)
    steps = found.candidates.loc[is_untrained(found.candidates), "steps"]
    if compared and len(steps) and int(steps.min()):
        yield remark("untrained", metric=found.metric, steps=int(steps.min()))


def _few_timings(found: Contenders, chosen: int) -> Iterator[Remark]:
    """Return whether the chosen cell has stragglers, or a valid timing of only one of several seeds."""
    counts = {"timed": int(found.n_timed[chosen]), "n": int(found.n_ok[chosen])}
    if found.stragglers[chosen]:
        yield remark("straggler", stragglers=int(found.stragglers[chosen]), **counts)
    elif found.timed_once(chosen):
        yield remark("timed_once", **counts)


def _collapsed(found: Contenders, row: int, code: str) -> Remark:
    """Return how many seeds of a cell collapsed, by how much, and which share of seeds that may be."""
    lost = found.contest.lost
    hits, n = float(lost.hits[row]), float(lost.n[row])
    lo, hi = share_interval(hits, n)
    drop = float(lost.drop[row])
    return remark(code, metric=found.metric, name=found.names[row], hits=int(hits), n=int(n), drop=drop, lo=lo, hi=hi)
