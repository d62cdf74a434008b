"""Which cells of a large grid to try next, as Optuna's Parzen estimator sees it (Bergstra et al. 2011)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from sweeps.axes import is_number

ASKS = 100
"""How often Optuna may name a cell that was tried or does not exist, before any other is taken at random."""

Point = tuple[int, ...]
"""A cell: of each axis the number of its value."""


def next_points(
    axes: Mapping[str, Sequence[Any]],
    tried: Mapping[Point, tuple[float, ...] | None],
    waiting: Sequence[Point],
    count: int,
) -> list[Point]:
    """So many of the waiting cells to try at the same time; fewer where there are no more.

    `tried` has the objectives of each cell, time first and less being better, validation accuracy second where it is
    measured; None for a cell that came to nothing. The same values give the same answer: the seed is how many cells
    were tried, so that a continued search goes on as if it had not been interrupted.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    values = [value for value in tried.values() if value is not None]
    directions = ["minimize", "maximize"][: len(values[0])] if values else ["minimize"]
    sampler = optuna.samplers.TPESampler(seed=len(tried), constant_liar=True)
    study = optuna.create_study(directions=directions, sampler=sampler)
    space = {axis: _distribution(found) for axis, found in axes.items() if len(found) > 1}
    for point, objectives in tried.items():
        params = {axis: number for axis, number in zip(axes, point, strict=True) if axis in space}
        state = TrialState.FAIL if objectives is None else TrialState.COMPLETE
        study.add_trial(create_trial(params=params, distributions=space, values=objectives, state=state))
    left = list(waiting)
    chosen: list[Point] = []
    for _ in range(ASKS):
        if len(chosen) == count or not left:
            return chosen
        asked = study.ask(space)
        point = tuple(asked.params.get(axis, 0) for axis in axes)
        if point in left:
            left.remove(point)
            chosen.append(point)
        else:
            study.tell(asked, state=TrialState.FAIL)
    further = random.Random(len(tried)).sample(left, min(count - len(chosen), len(left)))
    return chosen + further


def _distribution(values: Sequence[Any]) -> BaseDistribution:
    """Numbers have an order, by which neighbours are alike; words have none."""
    ordered = all(map(is_number, values))
    return IntDistribution(0, len(values) - 1) if ordered else CategoricalDistribution(range(len(values)))
