"""Which cells need more seeds, how many, and the command that runs them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from orchestrator.config.terms import Terms
from orchestrator.decision.choice import TIE
from orchestrator.decision.command import command, narrowed_to, with_more
from orchestrator.decision.contenders import Contenders
from orchestrator.decision.recommendation import FEWEST_SEEDS, NOTICED, SURE, MoreSeeds, is_sure
from orchestrator.decision.shortlist import axes_of

MOST_SEEDS = 30
"""More seeds than this are not practical."""

_MOST_RIVALS = 3
"""How many cells besides the chosen one and its baseline get more seeds."""


def further_seeds(found: Contenders, chosen: int) -> tuple[list[int], int]:
    """The chosen cell, its baseline, and the cells that may yet beat it, if they need more seeds, and how many seeds
    each should have: the same number for all, so that they can be paired by seed.
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
    asked = dict.fromkeys([chosen, *([baseline] if compared and baseline is not None else []), *rivals])
    return [row for row in asked if len(found.seeds[row]) < needed], needed


def unsettled(found: Contenders, chosen: int) -> list[str]:
    """Rivals that no practical number of seeds separates from the chosen cell, and cells too close to the margin."""
    open_yet = [row for row in _rivals(found, chosen) if _settles(found, chosen, row) is None]
    alike = [found.names[row] for row in open_yet if not _is_faster(found, chosen, row)]
    near = [f"the accuracy of {found.names[row]}" for row in open_yet if _is_faster(found, chosen, row)]
    compared = not math.isnan(found.choice.accuracy_difference.point[chosen])
    if compared and not is_sure(found.choice.p_within[chosen]) and _settles_margin(found, chosen) is None:
        near = ["its accuracy", *near]
    tied = (
        [f"Even {MOST_SEEDS} seeds would not distinguish it from {', or '.join(alike)}: use either."] if alike else []
    )
    keeps = f"is within the margin of {found.contest.margin:g}: it is too close to it"
    return tied + [f"Even {MOST_SEEDS} seeds would not show whether {whose} {keeps}." for whose in near]


def _rivals(found: Contenders, chosen: int) -> Sequence[int]:
    """The likeliest to be best after the chosen one; if chances are unknown, those with the least objective."""
    p_best, level = found.choice.p_best, found.choice.log_objective.point
    misses = found.choice.accuracy_difference.point < -found.contest.margin
    open_yet = (np.isnan(p_best) & ~np.isnan(level)) | (p_best >= NOTICED)
    others = [i for i in np.flatnonzero(open_yet).tolist() if i != chosen]
    return sorted(others, key=lambda i: (-np.nan_to_num(p_best[i]), misses[i], level[i]))[:_MOST_RIVALS]


def _settles(found: Contenders, chosen: int, rival: int) -> int | None:
    """Seeds needed to separate these two: by the objective or, for a rival that clearly has less, by its accuracy."""
    level = found.choice.log_objective
    if _is_faster(found, chosen, rival):
        return _settles_margin(found, rival)
    variance = sum(float(level.error[i] ** 2 * level.n[i]) for i in (chosen, rival))
    return _seeds(float(level.point[rival] - level.point[chosen]) + math.log1p(TIE), variance)


def _is_faster(found: Contenders, chosen: int, rival: int) -> bool:
    """Whether only its accuracy keeps a rival from being chosen."""
    level, loss = found.choice.log_objective.point, found.choice.accuracy_difference.point
    return bool(level[rival] < level[chosen] - math.log1p(TIE)) and not math.isnan(loss[rival])


def _settles_margin(found: Contenders, row: int) -> int | None:
    """Seeds needed to tell whether the cell is within the margin; 0 for the baseline, which is."""
    loss = found.choice.accuracy_difference
    if row == found.contest.baseline:
        return 0
    return _seeds(float(loss.point[row]) + found.contest.margin, float(loss.error[row] ** 2 * loss.n[row]))


def _seeds(gap: float, variance: float) -> int | None:
    """0 if nothing is known yet, None if no practical number suffices."""
    if math.isnan(gap) or math.isnan(variance):
        return 0
    return seeds_to_tell(gap, variance)


def seeds_to_tell(gap: float, variance: float) -> int | None:
    """Seeds after which the sign of a difference of this size has probability SURE; None if more than MOST_SEEDS.

    `variance` is that of the difference between values of one seed; n ≥ t(SURE, n − 1)² · variance / gap².
    """
    from scipy.special import stdtrit

    for n in range(2, MOST_SEEDS + 1):
        if stdtrit(n - 1, SURE) * math.sqrt(variance / n) <= abs(gap):
            return n
    return None


def more_seeds(found: Contenders, asked: Sequence[int], needed: int) -> Iterator[MoreSeeds]:
    """How many further seeds each cell should get."""
    for row in asked:
        cell_id = str(found.cells["cell_id"][row])
        yield MoreSeeds(cell_id=cell_id, name=found.names[row], seeds=needed - len(found.seeds[row]))


def commands(found: Contenders, asked: Sequence[int], needed: int, terms: Terms) -> Iterator[str]:
    """One command for all cells with the same axes and seeds, which is usually all of them."""
    alike: dict[tuple[tuple[str, ...], tuple[int, ...]], list[dict[str, Any]]] = {}
    for row in asked:
        axes, seeds = axes_of(found, row, terms), found.seeds[row]
        alike.setdefault((tuple(axes), tuple(with_more(seeds, needed - len(seeds)))), []).append(axes)
    for (_, seeds), cells in alike.items():
        yield command(terms.arguments, narrowed_to(cells, seeds, excludes=terms.excludes, zips=terms.zips))
