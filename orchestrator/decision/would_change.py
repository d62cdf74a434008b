"""What would make another cell the one to use."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from orchestrator.collection.launches import launch_bound
from orchestrator.decision.choice import TIE
from orchestrator.decision.contenders import Contenders
from orchestrator.decision.recommendation import NOTICED
from orchestrator.decision.words import BEST, difference, like_cells, objective, probability

_MOST = 3
"""Maximum number of lines of one kind."""


def would_change(found: Contenders, chosen: int) -> Iterator[str]:
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
