"""Why a cell is the one to use, and why another is not."""

from __future__ import annotations

import math
from collections.abc import Iterator

from orchestrator.decision.choice import SHOWN, TIE
from orchestrator.decision.contenders import Contenders
from orchestrator.decision.recommendation import SURE
from orchestrator.decision.words import BY_LIKE_CELLS, difference, like_cells, probability
from orchestrator.text import figures


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
