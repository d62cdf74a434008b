"""`sweep.search`: instead of the whole grid, the cells that Optuna or a searcher of Ray Tune suggests."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config.request import Request, Search
from orchestrator.store.record import TrialOutcome, TrialRecord
from sweeps.axes import is_number
from sweeps.status import Status
from sweeps.trial import TrialSpec

RULE = "search"
"""The value of `skipped_by` for trials that the search did not choose."""

Point = tuple[int, ...]
"""A cell, as the index of its value on each axis."""

ATTEMPTS = 100
"""How often Optuna may suggest a cell that was tried or does not exist; then cells are drawn at random."""


def next_trials(
    search: Search,
    request: Request,
    planned: Sequence[TrialSpec],
    waiting: Sequence[TrialSpec],
    ends: Mapping[str, TrialRecord],
) -> list[TrialSpec]:
    """Return all seeds of the next cells; nothing once `search.cells` cells were tried, or all.

    A cell with finished seeds runs its other seeds first.
    """
    axes = _axes(planned)
    points = {
        trial.cell_id: tuple(values.index(trial.axes[axis]) for axis, values in axes.items()) for trial in planned
    }
    tried = dict.fromkeys(r.cell_id for r in ends.values() if r.cell_id in points and not r.skipped_by)
    begun = [trial for trial in waiting if trial.cell_id in tried]
    if begun:
        return begun
    count = min(search.together, search.cells - len(tried))
    if count <= 0:
        return []
    values = _values(request, [record for record in ends.values() if record.cell_id in tried])
    next_points = optuna_points
    if search.name == "tune":
        from orchestrator.backends.ray import tune_extensions

        next_points = functools.partial(tune_extensions.next_points, request.tune["searcher"])
    results = {points[cell]: values.get(cell) for cell in tried}
    chosen = next_points(axes, results, list(dict.fromkeys(points[trial.cell_id] for trial in waiting)), count)
    return [trial for trial in waiting if points[trial.cell_id] in chosen]


def optuna_points(
    axes: Mapping[str, Sequence[Any]],
    tried: Mapping[Point, tuple[float, ...] | None],
    waiting: Sequence[Point],
    count: int,
) -> list[Point]:
    """Return `count` waiting cells to try at the same time, by Optuna's Parzen estimator (Bergstra et al. 2011).

    `tried` has the objectives of each cell: time, which is minimised, and validation accuracy if all cells have it;
    None for a cell without results. The seed is the number of tried cells, so that an interrupted search continues as
    if it had not been interrupted.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution, IntDistribution
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    measured = [value for value in tried.values() if value is not None]
    directions = ["minimize", "maximize"][: len(measured[0])] if measured else ["minimize"]
    sampler = optuna.samplers.TPESampler(seed=len(tried), constant_liar=True)
    study = optuna.create_study(directions=directions, sampler=sampler)
    space = {  # numbers have an order, so that neighbours are similar; words have none
        axis: IntDistribution(0, len(values) - 1)
        if all(map(is_number, values))
        else CategoricalDistribution(range(len(values)))
        for axis, values in axes.items()
        if len(values) > 1
    }
    for point, objectives in tried.items():
        params = {axis: index for axis, index in zip(axes, point, strict=True) if axis in space}
        state = TrialState.FAIL if objectives is None else TrialState.COMPLETE
        study.add_trial(create_trial(params=params, distributions=space, values=objectives, state=state))
    left = list(waiting)
    chosen: list[Point] = []
    for _ in range(ATTEMPTS):
        if len(chosen) == count or not left:
            return chosen
        suggested = study.ask(space)
        point = tuple(suggested.params.get(axis, 0) for axis in axes)
        if point in left:
            left.remove(point)
            chosen.append(point)
        else:
            study.tell(suggested, state=TrialState.FAIL)
    return chosen + random.Random(len(tried)).sample(left, min(count - len(chosen), len(left)))


def skipped(search: Search) -> TrialOutcome:
    """Return the outcome of a trial whose cell the search did not choose."""
    note = f"sweep.search={search.name}: not among the {search.cells} cells that it tried"
    return TrialOutcome(status=Status.SKIPPED, note=note, wall_s=0.0, skipped_by=RULE)


def _axes(planned: Sequence[TrialSpec]) -> dict[str, list[Any]]:
    """Return every axis but the seed with its values, numbers by size."""
    found: dict[str, list[Any]] = {}
    for trial in planned:
        for axis, value in trial.axes.items():
            values = found.setdefault(axis, [])
            if axis != "seed" and value not in values:
                values.append(value)
    found.pop("seed", None)
    return {axis: sorted(values) if all(map(is_number, values)) else values for axis, values in found.items()}


def _values(request: Request, records: Sequence[TrialRecord]) -> dict[str, tuple[float, ...]]:
    """Return the logarithm of each cell's mean objective and, if all cells have it, the mean score (see `Metric`)."""
    ok = [record for record in records if record.status is Status.OK]
    if not ok:
        return {}
    import numpy as np

    from orchestrator.decision.candidates import Contenders

    found = Contenders.among(request, ok)
    scores = [float(value) for value in found.cells["score"]]
    measured = not any(map(math.isnan, scores))
    levels = np.log(found.totals[request.criteria.objective].means()).tolist()
    return {
        str(cell): (level, own) if measured else (level,)
        for cell, level, own in zip(found.cells["cell_id"], levels, scores, strict=True)
        if not math.isnan(level)  # the baseline is in the table even without an objective
    }
