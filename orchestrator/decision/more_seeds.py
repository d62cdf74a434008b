"""Which cells get more seeds, and how many, so that the recommendation becomes clear."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from orchestrator.decision.candidates import Contenders
from orchestrator.decision.recommendation import Remark, remark
from orchestrator.decision.thresholds import FEWEST_SEEDS, MOST_SEEDS, NOTICED, SURE, TIE
from orchestrator.statistics.seeds_needed import seeds_to_tell

_SLOWER = 0.5
"""With one seed per cell, a cell whose objective is above that of the chosen one by more than this part is no rival."""

_MOST_RIVALS = 3
"""Maximum number of cells besides the chosen one and its baseline that get more seeds."""


def further_seeds(contenders: Contenders, chosen: int) -> tuple[list[int], int]:
    """Return the cells that need more seeds, and how many seeds each should have.

    The cells are the chosen one, its baseline and the cells that may beat it. All get the same number of seeds, so that
    they can be paired by seed.
    """
    choice = contenders.choice
    compared = not math.isnan(choice.score_difference.point[chosen])
    sure = choice.is_sure(choice.p_best[chosen]) and (not compared or choice.is_sure(choice.p_within[chosen]))
    few = contenders.fewest_seeds < FEWEST_SEEDS
    if sure and not few:
        return [], 0
    settled = {row: _settles(contenders, chosen, row) for row in _rivals(contenders, chosen)}
    rivals = [row for row, seeds in settled.items() if seeds is not None]
    for_margin = _settles_margin(contenders, chosen) if compared else None
    needed = max([FEWEST_SEEDS, for_margin or 0, *(seeds for seeds in settled.values() if seeds is not None)])
    baseline = contenders.baseline
    wanted = dict.fromkeys([chosen, *([baseline] if compared and baseline is not None else []), *rivals])
    return [row for row in wanted if len(contenders.seeds[row]) < needed], needed


def unsettled(contenders: Contenders, chosen: int) -> list[Remark]:
    """Return rivals that no practical number of seeds separates from the choice, and cells too close to the margin."""
    choice = contenders.choice
    unsure = [row for row in _rivals(contenders, chosen) if _settles(contenders, chosen, row) is None]
    equal = [contenders.names[row] for row in unsure if not _is_faster(contenders, chosen, row)]
    near: list[str | None] = [contenders.names[row] for row in unsure if _is_faster(contenders, chosen, row)]
    may_miss = not math.isnan(choice.score_difference.point[chosen]) and not choice.is_sure(choice.p_within[chosen])
    if may_miss and _settles_margin(contenders, chosen) is None:
        near = [None, *near]
    tied = [remark("indistinguishable", seeds=MOST_SEEDS, names=equal)] if equal else []
    return tied + [contenders.remark("near_margin", seeds=MOST_SEEDS, name=name) for name in near]


def _rivals(contenders: Contenders, chosen: int) -> Sequence[int]:
    """Return the cells most likely to be best after the chosen one; if unknown, those with the least objective."""
    p_best, level = contenders.choice.p_best, contenders.choice.log_objective.point
    misses = contenders.choice.excess > 0
    # Chance alone does not make one of two single seeds so much slower.
    unknown = np.isnan(p_best) & (level <= level[chosen] + math.log1p(_SLOWER))
    open_yet = unknown | (p_best >= NOTICED)
    others = [i for i in np.flatnonzero(open_yet).tolist() if i != chosen]
    return sorted(others, key=lambda i: (-np.nan_to_num(p_best[i]), misses[i], level[i]))[:_MOST_RIVALS]


def _settles(contenders: Contenders, chosen: int, rival: int) -> int | None:
    """Return the seeds that separate two cells: by objective or, for a rival with clearly less, by accuracy."""
    level = contenders.choice.log_objective
    if _is_faster(contenders, chosen, rival):
        return _settles_margin(contenders, rival)
    if level.source is not None and level.source[chosen] == level.source[rival]:
        return 0  # they are equally fast
    variance = sum(float(level.error[i] ** 2 * level.n[i]) for i in (chosen, rival))
    error = math.hypot(*(float(level.error[i]) for i in (chosen, rival)))
    return _seeds(float(level.point[rival] - level.point[chosen]) + math.log1p(TIE), variance, error)


def _is_faster(contenders: Contenders, chosen: int, rival: int) -> bool:
    """Return whether only its accuracy keeps a rival from being chosen."""
    level = contenders.choice.log_objective.point
    return bool(level[rival] < level[chosen] - math.log1p(TIE)) and not contenders.choice.keeps_accuracy[rival]


def _settles_margin(contenders: Contenders, row: int) -> int | None:
    """Return the seeds that show whether the cell is within the margin; 0 for the baseline, which is."""
    loss = contenders.choice.score_difference
    if row == contenders.baseline:
        return 0
    error = float(loss.error[row])
    return _seeds(-float(contenders.choice.excess[row]), error**2 * float(loss.n[row]), error)


def _seeds(gap: float, variance: float, error: float) -> int | None:
    """Return 0 if nothing is known yet, None if probably no practical number is enough."""
    if math.isnan(gap) or math.isnan(variance):
        return 0
    return seeds_to_tell(gap, variance, error, SURE, MOST_SEEDS)


def with_more(seeds: Sequence[int], more: int) -> list[int]:
    """Return the seeds plus this number of further seeds, the smallest that are free."""
    free = (seed for seed in range(len(seeds) + more) if seed not in set(seeds))
    return sorted([*seeds, *(next(free) for _ in range(more))])
