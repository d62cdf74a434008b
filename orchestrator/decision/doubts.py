"""What makes a recommendation provisional."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.collection.untrained import is_untrained
from orchestrator.decision.choice import BY_DRAWS, TIE
from orchestrator.decision.contenders import Contenders
from orchestrator.decision.recommendation import FEWEST_SEEDS, is_sure
from orchestrator.decision.words import BEST, probability
from orchestrator.statistics.means import Moments
from orchestrator.text import figures


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
