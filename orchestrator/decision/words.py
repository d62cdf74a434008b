"""A recommendation in plain English."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from orchestrator.collection.timed import is_valid
from orchestrator.decision.choice import BY_DRAWS, SHOWN, TIE
from orchestrator.decision.contenders import Contenders, Spoiled
from orchestrator.decision.recommendation import FEWEST_SEEDS, NOTICED, SURE, is_sure
from orchestrator.statistics.means import Moments
from orchestrator.text import figures
from orchestrator.text.units import Unit, suited

_MOST = 3
"""Lines of one kind."""

_BEST = f"the best, or within {TIE:.0%} of it,"
_BY_LIKE_CELLS = "by what cells of like batches came to"


def nothing(found: Contenders) -> list[str]:
    """Why no cell is recommended, in sentences."""
    told = "; ".join(found.left_out) or "no trial has ended"
    if len(found.candidates):
        baseline = found.names[found.contest.baseline or 0]
        lead = (
            "No recommendation: the validation accuracy of every cell that could be chosen is likely to be more than"
            f" {found.contest.margin:g} below that of the baseline ({baseline})."
        )
        return [lead, f"Not considered: {told}."] if found.left_out else [lead]
    if found.commonest_end:
        return [f"No recommendation: {told}.", found.commonest_end]
    if found.measure.unit == "s" and any(line.endswith(f"no {found.measure.told}") for line in found.left_out):
        told += " (trials have one that report samples_per_s and samples, or train_s)"
    return [f"No recommendation by {found.measure.told}: {told}."]


def doubts(found: Contenders, chosen: int) -> list[str]:
    """What makes the recommendation provisional."""
    p_best, p_within = float(found.choice.p_best[chosen]), float(found.choice.p_within[chosen])
    fewest = int(found.candidates["n_ok"].min())
    compared = not math.isnan(found.choice.shortfall.point[chosen])
    invalid = not is_valid(found.candidates["timing_valid"]).all()
    chance_unknown = math.isnan(p_best) and fewest < 2
    told = [_few(found, fewest, chance_unknown)] if fewest < FEWEST_SEEDS else []
    told += ["no other cell has a figure to compare it with"] if len(found.candidates) == 1 else []
    if not chance_unknown and not is_sure(p_best):
        told.append(f"the probability that it is {_BEST} is {probability(p_best)}{_likelier(found, chosen)}")
    if not chance_unknown and compared and not is_sure(p_within):
        told.append(f"the probability that its accuracy is within the margin is {probability(p_within)}")
    same = ["all seeds of each cell came to the same accuracy, as if the seed changed nothing"]
    missed = ["no trial reached the target accuracy"] * found.measure.target_missed
    return (
        told
        + missed
        + ["no timing is valid"] * invalid
        + _seeming_better(found, chosen)
        + same * _seeds_are_alike(found)
    )


def _seeming_better(found: Contenders, chosen: int) -> list[str]:
    """Cells without a valid timing are kept out because one cannot trust them, which is no reason to trust another."""
    better = _better_but_spoiled(found, chosen)
    if not better:
        return []
    many = figures.counted(len(better), "cell seems", "cells seem")
    first = f"{better[0].name}: {_unit(found).told(better[0].objective)}"
    return [f"{many} better, with a timing that is not valid ({first})"]


def _better_but_spoiled(found: Contenders, chosen: int) -> list[Spoiled]:
    """Those with less of the objective that are not seen to miss the margin, the best first."""
    limit = math.exp(found.choice.level.point[chosen] - math.log1p(TIE))
    baseline = found.contest.baseline
    least = -math.inf if baseline is None else float(found.cells["val_accuracy"][baseline]) - found.contest.margin
    return [each for each in found.spoiled if each.objective < limit and not each.val_accuracy < least]


def _likelier(found: Contenders, chosen: int) -> str:
    """The cell that is the best with a higher probability, if there is one, and why it is not the one to use."""
    level, choice = found.choice.level.point, found.choice
    rival = int(np.nan_to_num(choice.p_best).argmax())
    if not choice.p_best[rival] > choice.p_best[chosen] + BY_DRAWS:
        return ""
    further = float(level[rival] - level[chosen])
    if not choice.passes[rival]:
        why = "is more likely than not to miss the margin"
    elif further <= math.log1p(TIE) and choice.shortfall.point[rival] < choice.shortfall.point[chosen]:
        why = f"came out less accurate, and no more than {TIE:.0%} ahead"
    else:
        why = f"came out {math.expm1(further):.1%} behind"
    return f" ({probability(float(choice.p_best[rival]))} for {found.names[rival]}, which {why})"


def _seeds_are_alike(found: Contenders) -> bool:
    """Whether no cell's accuracy varies at all: then it tells nothing of chance, however many seeds there are."""
    moments = Moments.of(found.contest.accuracy)
    several = moments.n >= 2
    return bool(several.any() and (moments.variance[several] == 0).all())


def _few(found: Contenders, fewest: int, chance_unknown: bool) -> str:
    if chance_unknown:
        return "one seed tells nothing about chance"
    where = "a cell" if fewest == found.candidates["n_ok"].max() else "of some cells"
    return f"{fewest} seed{'s' * (fewest > 1)} {where} {'are' if fewest > 1 else 'is'} few"


def recommended(found: Contenders, chosen: int) -> list[str]:
    """The cell, what it takes and what it loses, in sentences."""
    loss, baseline = found.choice.shortfall.point[chosen], found.contest.baseline
    if baseline is None:
        return _without_accuracy(found, chosen)
    told = f"Use {found.names[chosen]}: {found.measure.told} {_value(found, chosen)}"
    if baseline == chosen:
        return [f"{told}, the baseline itself{_paid(found, chosen)}."]
    known = not math.isnan(found.choice.level.point[baseline])
    told += f", against {_value(found, baseline)} of the baseline ({found.names[baseline]})" if known else ""
    of = "the baseline's" if known else f"that of the baseline ({found.names[baseline]})"
    paid = _paid(found, chosen, baseline if known else None)
    return [f"{told}{paid}; {_accuracy(loss, of)} ({found.contest.margin:g} lower is allowed)."]


def _paid(found: Contenders, chosen: int, beside: int | None = None) -> str:
    """The time it takes and what it costs, and another cell, as far as the objective does not say so already."""
    told = ""
    for total, word in ((found.totals["time"], "in"), (found.totals["cost"], "for")):
        values = total.means()
        if total.unit == found.measure.unit or math.isnan(values[chosen]):
            continue
        other = math.nan if beside is None else float(values[beside])
        unit = suited(total.unit, float(values[chosen]), other)
        own = unit.told(values[chosen])
        against = "" if math.isnan(other) else f", against {unit.number(other)}"
        told += f", {word} {own}" if beside is None else f"; {own}{against}"
    return told


def _without_accuracy(found: Contenders, chosen: int) -> list[str]:
    """What is known of a sweep whose trials report no validation accuracy: only what is least."""
    row = found.cells.to_dict("records")[chosen]
    least = f"Least {found.measure.told}: {found.names[chosen]}, {_value(found, chosen)}{_paid(found, chosen)}"
    speedup = float(row["speedup"])
    if row["cell_id"] != row["baseline_cell_id"] and not math.isnan(speedup):
        least += f", at {figures.times(speedup)}× its baseline's throughput"
    unknown = "Whether it trains as well as the others is not known: no trial reported a validation accuracy"
    accuracy = found.cells["accuracy"]
    if accuracy.isna().all():
        return [f"{least}.", f"{unknown}."]
    told = [f"{least}.", f"{unknown}, and accuracy on the test set chooses nothing: report it as val_accuracy, too."]
    best, own = int(accuracy.to_numpy().argmax()), float(accuracy[chosen])
    if best != chosen and not math.isnan(own):  # so that nobody takes the quickest for as good as the best
        highest = f"the highest is {accuracy[best]:.3f} ({found.names[best]})"
        told.append(f"On the test set its accuracy is {own:.3f}; {highest}.")
    return told


def reasons(found: Contenders) -> Iterator[str]:
    """Why this cell, and what was not considered."""
    choice, margin = found.choice, found.contest.margin
    compared = found.contest.baseline is not None
    among = ", of those whose accuracy is more likely than not within the margin" if compared else ""
    count = len(found.candidates)
    sure = "" if choice.by_accuracy else f" that are as good as any with {SURE:.0%} probability"
    of_them = f"most accurate of {'those' if sure else 'them'}{sure}"
    if count == 1:
        yield "It is the only cell with a figure to compare."
    elif choice.all_tie and compared:
        yield (
            "The cells whose accuracy is more likely than not within the margin are within"
            f" {TIE:.0%} of each other in {found.measure.told}: it is the {of_them}."
        )
    elif choice.tied > 1 and compared:
        yield (
            f"Of {count} cells {choice.tied} are within {TIE:.0%} of the least {found.measure.told}{among}: it is the"
            f" {of_them}."
        )
    else:
        yield f"Of {count} cells it has the least {found.measure.told}{among}."
    if compared and choice.chosen is not None and choice.shortfall.point[choice.chosen] < -margin:
        yield (
            f"Its own seeds came out more than {margin:g} lower; {_BY_LIKE_CELLS}, it is more likely than not within"
            " the margin."
        )
    if found.measure.why:
        yield f"Not the time to a target accuracy: {found.measure.why}."
    if shown := figures.counted(int((choice.p_within < SHOWN).sum()), "cell is", "cells are"):
        yield f"{shown} shown to lose more than {margin:g} in validation accuracy."
    if found.left_out:
        yield f"Not considered: {'; '.join(found.left_out)}."
    if compared and not found.at_reference:
        yield "No cell is known to be at the reference batch: the baseline is the most accurate one."


def would_change(found: Contenders, chosen: int) -> Iterator[str]:
    """Margins that let a better cell in, cells that may prove better, axes that may go on."""
    level, loss, choice = found.choice.level.point, found.choice.shortfall.point, found.choice
    better = [i for i in range(len(level)) if level[i] < level[chosen] - math.log1p(TIE) and choice.middle[i] < 0]
    for i in sorted(better, key=lambda i: -choice.middle[i])[:_MOST]:
        within, margin = float(choice.p_within[i]), _rounded_up(-choice.middle[i])
        why = _like_cells(found, i, float(margin))
        chance = f" (within {found.contest.margin:g} with probability {probability(within)}{why})"
        yield (
            f"report.margin={margin} would let in {found.names[i]}: {_value(found, i)},"
            f" {_accuracy(loss[i])}{'' if math.isnan(within) else chance}."
        )
    rivals = [i for i in np.argsort(-choice.p_best).tolist() if i != chosen and choice.p_best[i] >= NOTICED]
    for i in rivals[:_MOST]:
        chance = probability(float(choice.p_best[i]))
        yield f"{found.names[i]} is {_BEST} with probability {chance}: {_value(found, i)}{_loss(loss[i])}."
    for each in _better_but_spoiled(found, chosen)[:_MOST]:
        value = _unit(found).told(each.objective)
        yield f"{each.name} would be better with {value}, but its timing is not valid: {each.note.rstrip('.')}."
    yield from _at_the_edge(found, chosen)


def why_not(found: Contenders, chosen: int | None, row: int) -> str:
    """Why a cell is not the one to use; nothing of the chosen one."""
    level, choice, told = found.choice.level.point, found.choice, found.measure.told
    if row == chosen:
        return ""
    if math.isnan(level[row]):
        return f"its {told} is not known, or its timing is not valid"
    if chosen is None or not choice.passes[row]:
        within = float(choice.p_within[row])
        chance = f", within the margin with probability {probability(within)}{_like_cells(found, row)}"
        allowed = f"{found.contest.margin:g} lower is allowed{'' if math.isnan(within) else chance}"
        return f"{_accuracy(choice.shortfall.point[row])} ({allowed})"
    if level[row] - level[chosen] > math.log1p(TIE):
        return f"its {told} is {math.expm1(level[row] - level[chosen]):.0%} above that of {found.names[chosen]}"
    if choice.by_accuracy and choice.shortfall.point[chosen] > choice.shortfall.point[row]:
        why = "is more accurate"
    elif level[chosen] <= level[row] and choice.by_accuracy:
        why = "has no more"
    else:
        why = "is surer to be as good as any"
    return f"its {told} is within {TIE:.0%} of that of {found.names[chosen]}, which {why}"


def _like_cells(found: Contenders, row: int, lets_in: float = math.inf) -> str:
    """What explains the chance of a cell whose own mean keeps the margin, and which is not likely to.

    Or, the other way round, a margin that lets it in, and that its own mean does not keep.
    """
    own, pooled = found.choice.shortfall.point[row], found.choice.middle[row]
    unlike = own >= -found.contest.margin > pooled or -own > lets_in + 1e-9
    return f", {_BY_LIKE_CELLS}" if unlike else ""


def _at_the_edge(found: Contenders, chosen: int) -> Iterator[str]:
    row = found.cells.loc[chosen]
    if found.tried["gpus"].nunique() == 1:
        yield f"Only gpus={row['gpus']:g} was tried: what more of them would be worth is not known (sweep.axes.gpus)."
    for axis, what in (("gpus", "GPU count"), ("global_batch_size", "batch"), ("lr_multiplier", "lr_multiplier")):
        least, most = found.tried[axis].min(), found.tried[axis].max()
        ends = {most: "largest"} | ({least: "smallest"} if axis == "lr_multiplier" else {})
        if least < most and row[axis] in ends:
            yield f"Its {what}, {row[axis]:g}, is the sweep's {ends[row[axis]]}: a wider axis may hold a better cell."


def probability(value: float) -> str:
    """`97%`; never 0% or 100%, which no sample shows."""
    if math.isnan(value):
        return "unknown"
    return "over 99%" if value > 0.99 else "below 1%" if value < 0.01 else f"{value:.0%}"


def _value(found: Contenders, row: int) -> str:
    return _unit(found).told(math.exp(found.choice.level.point[row]))


def _unit(found: Contenders) -> Unit:
    """Of the objective: one for all that is said of it, by the chosen cell and the baseline."""
    told = [row for row in (found.choice.chosen, found.contest.baseline) if row is not None]
    return suited(found.measure.unit, *np.exp(found.choice.level.point[told]))


def _loss(difference: float) -> str:
    return "" if math.isnan(difference) else f", {_accuracy(difference)}"


def _accuracy(difference: float, of: str = "the baseline's") -> str:
    """A difference of validation accuracies in words."""
    size = f"{abs(difference):.4f}"
    if not float(size):
        return f"validation accuracy the same as {of}"
    return f"validation accuracy {size} {'higher' if difference > 0 else 'lower'} than {of}"


def _rounded_up(value: float) -> str:
    """With two digits, so that as a margin it lets a loss of this size pass."""
    digits = 1 - math.floor(math.log10(value))
    return f"{math.ceil(round(value * 10**digits, 6)) / 10**digits:g}"
