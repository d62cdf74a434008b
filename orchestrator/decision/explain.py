"""The sentences that a decision begins with, the first of which says it all.

Phrases shared by the sentences about a recommendation.

Why a cell is the one to use, and why another is not.

What would make another cell the one to use.

What makes a recommendation provisional.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from orchestrator.analysis.validity import is_untrained, is_valid, launch_bound
from orchestrator.decision.candidates import Contenders, remedy_of
from orchestrator.decision.choice import BY_DRAWS, SHOWN, TIE
from orchestrator.decision.claims import CONFIRMED, INCONCLUSIVE, REFUTED, Verdict
from orchestrator.decision.recommendation import FEWEST_SEEDS, NOTICED, SURE, is_sure
from orchestrator.statistics.intervals import Moments
from orchestrator.telemetry.timing_gate import Fault
from orchestrator.text import figures
from orchestrator.text.figures import Unit, suited
from orchestrator.text.rows import cell_label, varying

BEST = f"the best, or within {TIE:.0%} of the best"
BY_LIKE_CELLS = "judged together with cells of similar batch size"


def probability(value: float) -> str:
    """`97%`; never 0% or 100%, which no sample shows."""
    if math.isnan(value):
        return "unknown"
    return "over 99%" if value > 0.99 else "below 1%" if value < 0.01 else f"{value:.0%}"


def objective(found: Contenders, row: int) -> str:
    """The cell's objective, with the unit."""
    return unit_of(found).text(math.exp(found.choice.log_objective.point[row]))


def unit_of(found: Contenders) -> Unit:
    """The unit of the objective, from the chosen cell and the baseline so that it is the same everywhere."""
    rows = [row for row in (found.choice.favourite, found.contest.baseline) if row is not None]
    return suited(found.measure.unit, *np.exp(found.choice.log_objective.point[rows]))


def difference(by: float) -> str:
    """A difference of validation accuracies from the baseline's, as a phrase."""
    return f"validation accuracy {comparison(by)}"


def comparison(by: float) -> str:
    """`0.0093 lower than the baseline's`."""
    size = f"{abs(by):.4f}"
    return (
        f"{size} {'higher' if by > 0 else 'lower'} than the baseline's" if float(size) else "the same as the baseline's"
    )


def like_cells(found: Contenders, row: int, lets_in: float = math.inf) -> str:
    """A phrase that explains why a cell whose own mean keeps the margin is not likely to.

    Or, conversely, why a margin that its own mean does not keep lets it in.
    """
    own, pooled = found.choice.accuracy_difference.point[row], found.choice.pooled_difference[row]
    unlike = own >= -found.contest.margin > pooled or -own > lets_in + 1e-9
    return f", {BY_LIKE_CELLS}" if unlike else ""


_MOST_NAMED = 2
"""How many cells a sentence names besides the first."""

_VERBS = {"time": "takes", "energy": "uses", "cost": "costs"}
_BEST = {"time": "The fastest is", "energy": "The least energy is used by", "cost": "The cheapest is"}
"""By what is minimised."""


def recommended(found: Contenders, chosen: int, verb: str = "Use") -> list[str]:
    """Sentences on the cell, what it takes and what it loses."""
    accuracy_difference, baseline = found.choice.accuracy_difference.point[chosen], found.contest.baseline
    if baseline is None:
        return _without_accuracy(found, chosen)
    lead = f"{verb} {found.names[chosen]}"
    if baseline == chosen:
        return [f"{lead}, which is the baseline: training {_listed(_taken(found, chosen))}."]
    compared = f"validation accuracy is {comparison(accuracy_difference)}"
    allowed = f"(up to {found.contest.margin:g} lower is allowed)"
    return [
        f"{lead}: training {_listed([*_taken(found, chosen, baseline), f'{compared} {allowed}'])}.",
        f"The baseline is {found.names[baseline]}.",
    ]


def nothing(found: Contenders) -> list[str]:
    """Sentences on why no cell is recommended."""
    if found.choice.favourite is not None:
        return (_too_early if found.seem_better else _untimed)(found, found.choice.favourite)
    why = "; ".join(found.left_out) or "no trial has ended"
    if len(found.candidates):
        baseline = found.names[found.contest.baseline or 0]
        lead = (
            "No recommendation: the validation accuracy of every cell that could be chosen is likely to be more than"
            f" {found.contest.margin:g} below that of the baseline ({baseline})."
        )
        return [lead, f"Not considered: {why}."] if found.left_out else [lead]
    if found.commonest_end:
        return [f"No recommendation: {why}.", found.commonest_end]
    if found.measure.unit == "s" and any(line.endswith(f"no {found.measure.name}") for line in found.left_out):
        why += " (trials need to report samples_per_s and samples, or train_s)"
    return [f"No recommendation by {found.measure.name}: {why}."]


def without_objective(cells: pd.DataFrame, judged: Sequence[Verdict]) -> list[str]:
    """The outcome of the claims and the largest speed-up among the cells of a summary."""
    why = "Nothing is recommended, as requested (report.objective=none)."
    return [sentence for sentence in (_of_claims(judged), _of_scaling(cells), why) if sentence]


def _of_claims(judged: Sequence[Verdict]) -> str:
    if not judged:
        return ""
    verdicts = [verdict.verdict for verdict in judged]
    counts = {verdict: verdicts.count(verdict) for verdict in (CONFIRMED, REFUTED, INCONCLUSIVE)}
    parts = [f"{count} {verdict}" for verdict, count in counts.items() if count]
    return f"Claims: {', '.join(parts)}."


def _of_scaling(cells: pd.DataFrame) -> str:
    """The largest speed-up over a baseline with fewer GPUs, preferably of valid timings; empty if there is none."""
    if not len(cells):
        return ""
    gpus = cells.set_index("cell_id")["gpus"]
    more = cells["gpus"] > gpus.reindex(cells["baseline_cell_id"]).to_numpy()
    scaled = cells[more & cells["speedup"].notna()]
    if scaled.empty:
        return ""
    valid = is_valid(scaled["timing_valid"])
    scaled = scaled[valid] if valid.any() else scaled
    row = scaled.to_dict("records")[int(scaled["speedup"].to_numpy().argmax())]
    speed = figures.with_interval(row["speedup"], row["speedup_lo"], row["speedup_hi"], figures.times, "×")
    best = "The largest speed-up is" if row["speedup"] > 1 else "No cell is faster with more GPUs: the best speed-up is"
    ideal, cell = f"{figures.percent(row['efficiency'])}% of the ideal", cell_label(row, varying(cells))
    doubt = "" if valid.any() else " (its timing is not valid)"
    return f"{best} {speed}, {ideal}, for {cell}{doubt}."


def _untimed(found: Contenders, favourite: int) -> list[str]:
    """Why no timing is valid and how to get one; only then, which cell seems best."""
    cell = found.cells.loc[favourite]
    left_out = [f"Not considered: {'; '.join(found.left_out)}."] if found.left_out else []
    why, fault = str(cell["note"]).rstrip("."), Fault(str(cell["timing_fault"]))
    remedy = remedy_of(fault, unfinished=found.unfinished)
    return [
        f"No recommendation yet, because no timing is valid ({why}). To get one, {remedy}.",
        *recommended(found, favourite, "So far the best cell seems to be"),
        *left_out,
    ]


def _too_early(found: Contenders, favourite: int) -> list[str]:
    """Which cells seem better than the best one with a valid timing, and how to find out."""
    first, *others = found.seem_better
    unit = suited(found.measure.unit, first.objective)
    own = unit.text(math.exp(found.choice.log_objective.point[favourite]))
    remedy = remedy_of(first.fault, first.cell_id, unfinished=found.unfinished)
    lead = (
        f"No recommendation yet: the best cell seems to be {first.name}, whose {found.measure.name} is"
        f" {unit.text(first.objective)}, compared with {own} for {found.names[favourite]}; but its timing is not valid"
        f" ({first.note}). To find out, {remedy}."
    )
    named = [f"{each.name}, {unit.text(each.objective)}" for each in others[:_MOST_NAMED]]
    named += [f"{len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []
    further = [f"Other cells without a valid timing seem better, too: {'; '.join(named)}."] if named else []
    unknown = _accuracy_unknown(found) if found.contest.baseline is None else []
    return [lead, *unknown, *further, f"Not considered: {'; '.join(found.left_out)}."]


def _taken(found: Contenders, chosen: int, baseline: int | None = None) -> list[str]:
    """Phrases such as `for the fixed budget takes 30.0 s (baseline: 60.0 s)`: the objective, then time and cost."""
    kind, _, purpose = found.measure.name.partition(" ")
    beside = "" if baseline is None or not _has_objective(found, baseline) else objective(found, baseline)
    phrases = [f"{purpose} {_VERBS[kind]} {objective(found, chosen)}{_baseline(beside)}"]
    for each in ("time", "cost"):
        total = found.totals[each]
        own, other = (math.nan if row is None else float(total.means()[row]) for row in (chosen, baseline))
        if total.unit == found.measure.unit or math.isnan(own):
            continue
        unit = suited(total.unit, own, other)
        phrases.append(f"{_VERBS[each]} {unit.text(own)}{_baseline(unit.number(other) if beside else '')}")
    return phrases


def _has_objective(found: Contenders, row: int) -> bool:
    return not math.isnan(found.choice.log_objective.point[row])


def _baseline(text: str) -> str:
    return f" (baseline: {text})" if text else ""


def _listed(phrases: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b, and c`."""
    *others, last = phrases
    return f"{', '.join(others)}{',' * (len(others) > 1)} and {last}" if others else last


def _without_accuracy(found: Contenders, chosen: int) -> list[str]:
    """What is known if trials report no validation accuracy: only the least objective."""
    row = found.cells.to_dict("records")[chosen]
    kind, _, _ = found.measure.name.partition(" ")
    best = f"{_BEST[kind]} {found.names[chosen]}: training {_listed(_taken(found, chosen))}"
    speedup = float(row["speedup"])
    if row["cell_id"] != row["baseline_cell_id"] and not math.isnan(speedup):
        best += f", at {figures.times(speedup)}× the throughput of its baseline"
    sentences = [f"{best}.", *_accuracy_unknown(found)]
    accuracy = found.cells["accuracy"].mask(is_untrained(found.cells))
    own = float(accuracy[chosen])
    if not math.isnan(own) and (top := int(np.nanargmax(accuracy))) != chosen:  # the fastest may not be the best
        highest = f"the highest is {accuracy[top]:.3f} ({found.names[top]})"
        sentences.append(f"On the test set its accuracy is {own:.3f}; {highest}.")
    return sentences


def _accuracy_unknown(found: Contenders) -> list[str]:
    unknown = "Whether it trains as well as the others is not known, because no trial reported a validation accuracy."
    on_test_set = "Accuracy on the test set is not used to choose; report a val_accuracy, too."
    return [unknown] if found.tried["accuracy"].isna().all() else [unknown, on_test_set]


def reasons(found: Contenders) -> Iterator[str]:
    """Why this cell was chosen, and what was not considered."""
    choice, margin = found.choice, found.contest.margin
    compared = found.contest.baseline is not None
    among = ", among those whose accuracy is more likely than not within the margin" if compared else ""
    count, tied = len(found.candidates), int(choice.tied.sum())
    sure = "" if choice.by_accuracy else f" that are as good as any with {SURE:.0%} probability"
    of_them = f"most accurate of {'those' if sure else 'them'}{sure}"
    if count == 1:
        yield "It is the only cell that can be compared."
    elif choice.all_tie and compared:
        yield (
            "The cells whose accuracy is more likely than not within the margin are within"
            f" {TIE:.0%} of each other in {found.measure.name}: this one is the {of_them}."
        )
    elif tied > 1 and compared:
        yield (
            f"Of {count} cells, {tied} are within {TIE:.0%} of the least {found.measure.name}{among}: this one"
            f" is the {of_them}."
        )
    else:
        yield f"Of {count} cells, it has the least {found.measure.name}{among}."
    if compared and choice.favourite is not None and choice.accuracy_difference.point[choice.favourite] < -margin:
        yield (
            f"The mean of its own seeds is more than {margin:g} lower; {BY_LIKE_CELLS}, it is more likely than not"
            " within the margin."
        )
    if found.measure.why:
        yield f"The time to a target accuracy is not compared, because {found.measure.why}."
    if shown := figures.counted(int((choice.p_within < SHOWN).sum()), "cell is", "cells are"):
        yield f"{shown} shown to lose more than {margin:g} in validation accuracy."
    if found.left_out:
        yield f"Not considered: {'; '.join(found.left_out)}."
    if compared and not found.at_reference:
        yield "No cell is known to be at the reference batch, so the baseline is the most accurate one."


def why_not(found: Contenders, chosen: int | None, row: int) -> str:
    """Why a cell is not the one to use; empty for the chosen one."""
    level, choice, measure = found.choice.log_objective.point, found.choice, found.measure.name
    if row == chosen:
        return ""
    if math.isnan(level[row]):
        return f"its {measure} is not known, or its timing is not valid"
    if chosen is None and choice.passes[row]:
        better = found.seem_better
        return (
            f"the best cell seems to be {better[0].name}, whose timing is not valid" if better else "no timing is valid"
        )
    if chosen is None or not choice.passes[row]:
        within = float(choice.p_within[row])
        chance = f", within the margin with probability {probability(within)}{like_cells(found, row)}"
        allowed = f"{found.contest.margin:g} lower is allowed{'' if math.isnan(within) else chance}"
        return f"{difference(choice.accuracy_difference.point[row])} ({allowed})"
    if level[row] - level[chosen] > math.log1p(TIE):
        return f"its {measure} is {math.expm1(level[row] - level[chosen]):.0%} above that of {found.names[chosen]}"
    if choice.by_accuracy and choice.accuracy_difference.point[chosen] > choice.accuracy_difference.point[row]:
        why = "is more accurate"
    elif level[chosen] <= level[row] and choice.by_accuracy:
        why = "needs no more"
    else:
        why = "is more certain to be as good as any"
    return f"its {measure} is within {TIE:.0%} of that of {found.names[chosen]}, which {why}"


_MOST = 3
"""Maximum number of lines of one kind."""


def sensitivity(found: Contenders, chosen: int) -> Iterator[str]:
    """Lines on margins that would admit a better cell, cells that may prove better, and axes worth extending."""
    level, loss, choice = found.choice.log_objective.point, found.choice.accuracy_difference.point, found.choice
    better = [
        i for i in range(len(level)) if level[i] < level[chosen] - math.log1p(TIE) and choice.pooled_difference[i] < 0
    ]
    for i in sorted(better, key=lambda i: -choice.pooled_difference[i])[:_MOST]:
        within, margin = float(choice.p_within[i]), _rounded_up(-choice.pooled_difference[i])
        why = like_cells(found, i, float(margin))
        chance = f" (within {found.contest.margin:g} with probability {probability(within)}{why})"
        yield (
            f"report.margin={margin} would allow {found.names[i]}: {objective(found, i)},"
            f" {difference(loss[i])}{'' if math.isnan(within) else chance}."
        )
    rivals = [i for i in np.argsort(-choice.p_best).tolist() if i != chosen and choice.p_best[i] >= NOTICED]
    for i in rivals[:_MOST]:
        chance = probability(float(choice.p_best[i]))
        yield f"With probability {chance}, {found.names[i]} is {BEST}: {objective(found, i)}{_loss(loss[i])}."
    yield from _at_the_edge(found, chosen)
    row = found.cells.loc[chosen]
    if (launch_bound(found.cells) & found.cells["n_processes"].eq(1).fillna(False))[chosen]:
        yield (
            f"Its GPUs spend {row['launch_share']:.0%} of a step waiting for their processes, mostly for kernel"
            " launches, and a single process timed it. Processes differ in this by up to half: to average over several,"
            " set workers=per_seed."
        )


def _loss(by: float) -> str:
    return "" if math.isnan(by) else f", {difference(by)}"


def _at_the_edge(found: Contenders, chosen: int) -> Iterator[str]:
    row = found.cells.loc[chosen]
    if found.tried["gpus"].nunique() == 1:
        yield f"Only gpus={row['gpus']:g} was tried, so nothing is known about other numbers of GPUs (sweep.axes.gpus)."
    for axis, what in (("gpus", "GPU count"), ("global_batch_size", "batch"), ("lr_multiplier", "lr_multiplier")):
        least, most = found.tried[axis].min(), found.tried[axis].max()
        ends = {most: ("largest", "larger")} | ({least: ("smallest", "smaller")} if axis == "lr_multiplier" else {})
        if least < most and row[axis] in ends:
            extreme, further = ends[row[axis]]
            yield f"Its {what}, {row[axis]:g}, is the {extreme} of the sweep: a {further} one may be better."


def _rounded_up(value: float) -> str:
    """Round up to two digits, so that as a margin it admits a loss of this size."""
    digits = 1 - math.floor(math.log10(value))
    return f"{math.ceil(round(value * 10**digits, 6)) / 10**digits:g}"


def doubts(found: Contenders, chosen: int) -> list[str]:
    """What makes the recommendation provisional."""
    p_best, p_within = float(found.choice.p_best[chosen]), float(found.choice.p_within[chosen])
    fewest = int(found.candidates["n_ok"].min())
    compared = not math.isnan(found.choice.accuracy_difference.point[chosen])
    chance_unknown = math.isnan(p_best) and fewest < 2
    reasons = [_few(found, fewest, chance_unknown)] if fewest < FEWEST_SEEDS else []
    reasons += ["no other cell can be compared with it"] if len(found.candidates) == 1 else []
    if not chance_unknown and not is_sure(p_best):
        chance = f"{probability(p_best)}{_likelier(found, chosen)}"
        reasons.append(f"the probability that the chosen cell is {BEST}, is {chance}")
    if not chance_unknown and compared and not is_sure(p_within):
        reasons.append(f"the probability that its accuracy is within the margin is {probability(p_within)}")
    same = ["all seeds of each cell reached exactly the same accuracy, as if the seed had no effect"]
    missed = ["no trial reached the target accuracy"] * found.measure.target_missed
    return reasons + missed + same * _seeds_are_alike(found) + (_untrained(found) if compared else [])


def _untrained(found: Contenders) -> list[str]:
    steps = found.candidates.loc[is_untrained(found.candidates), "steps"]
    few = figures.counted(int(steps.min()), "step", "steps") if len(steps) else ""
    return [f"some cells were trained for only {few}, after which an accuracy says little"] if few else []


def _few(found: Contenders, fewest: int, chance_unknown: bool) -> str:
    if chance_unknown:
        return "one seed per cell does not show how much results vary by chance"
    cells = "every cell has" if fewest == found.candidates["n_ok"].max() else "some cells have"
    return f"{cells} only {figures.counted(fewest, 'seed', 'seeds')}"


def _likelier(found: Contenders, chosen: int) -> str:
    """The cell with a higher probability of being best, if there is one, and why it is not the one to use."""
    level, choice = found.choice.log_objective.point, found.choice
    rival = int(np.nan_to_num(choice.p_best).argmax())
    if not choice.p_best[rival] > choice.p_best[chosen] + BY_DRAWS:
        return ""
    further = float(level[rival] - level[chosen])
    if not choice.passes[rival]:
        why = "is more likely than not to miss the margin"
    elif (
        further <= math.log1p(TIE)
        and choice.accuracy_difference.point[rival] < choice.accuracy_difference.point[chosen]
    ):
        why = f"was less accurate, and at most {TIE:.0%} ahead"
    else:
        why = f"was {math.expm1(further):.1%} behind"
    return f" ({probability(float(choice.p_best[rival]))} for {found.names[rival]}, which {why})"


def _seeds_are_alike(found: Contenders) -> bool:
    """Whether no cell's accuracy varies at all: then seeds say nothing about chance, however many there are."""
    moments = Moments.of(found.contest.accuracy)
    several = moments.n >= 2
    return bool(several.any() and (moments.variance[several] == 0).all())
