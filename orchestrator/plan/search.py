"""A search instead of the whole grid: which cells run next, by what those before came to."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.config.request import Request, Search
from orchestrator.store.record import TrialOutcome, TrialRecord
from sweeps.axes import is_number, is_whole
from sweeps.status import Status
from sweeps.trial import TrialSpec

RULE = "search"
"""What `skipped_by` says of trials that the search did not ask for."""

NextPoints = Callable[..., list[tuple[int, ...]]]
"""As `search_optuna.next_points`."""

SEARCHES = ("optuna", "tune")


def search_errors(sweep: Mapping[str, Any]) -> Iterator[str]:
    """A line for every mistake in `sweep.search` and the keys that belong to it."""
    if sweep["search"] is None:
        return
    if sweep["search"] not in SEARCHES:
        yield f"sweep.search must be null or one of {', '.join(SEARCHES)}, not {sweep['search']!r}"
    elif sweep["search"] == "optuna" and importlib.util.find_spec("optuna") is None:
        yield "sweep.search=optuna needs the package optuna: pip install 'sweep-orchestrator[optuna]'"
    if sweep["phases"] is not None:
        yield "sweep.search and sweep.phases both choose the cells: set one of them"
    for key in ("search_cells", "search_together"):
        if not is_whole(sweep[key]) or sweep[key] < 1:
            yield f"sweep.{key} must be a whole number of at least 1, not {sweep[key]!r}"


def next_trials(
    search: Search,
    request: Request,
    planned: Sequence[TrialSpec],
    waiting: Sequence[TrialSpec],
    ends: Mapping[str, TrialRecord],
) -> list[TrialSpec]:
    """All seeds of the next cells; nothing once `search.cells` cells were tried, or all.

    A cell that was begun is ended first.
    """
    axes = _axes(planned)
    points = {trial.cell_id: _point(trial, axes) for trial in planned}
    tried = dict.fromkeys(r.cell_id for r in ends.values() if r.cell_id in points and not r.skipped_by)
    begun = [trial for trial in waiting if trial.cell_id in tried]
    if begun:
        return begun
    count = min(search.together, search.cells - len(tried))
    if count <= 0:
        return []
    values = _values(request, [record for record in ends.values() if record.cell_id in tried])
    asked = _next_points(search, request)(
        axes,
        {points[cell]: values.get(cell) for cell in tried},
        list(dict.fromkeys(points[trial.cell_id] for trial in waiting)),
        count,
    )
    return [trial for trial in waiting if points[trial.cell_id] in asked]


def _next_points(search: Search, request: Request) -> NextPoints:
    if search.name == "tune":
        from orchestrator.backends.ray import tune_extensions as ray_search

        return functools.partial(ray_search.next_points, request.tune["searcher"])
    from orchestrator.plan.search_optuna import next_points

    return next_points


def skipped(search: Search) -> TrialOutcome:
    """The end of a trial that the search did not come to."""
    note = f"sweep.search={search.name}: not among the {search.cells} cells that it tried"
    return TrialOutcome(status=Status.SKIPPED, note=note, wall_s=0.0, skipped_by=RULE)


def _axes(planned: Sequence[TrialSpec]) -> dict[str, list[Any]]:
    """Every axis but the seed with its values, numbers by size."""
    found: dict[str, list[Any]] = {}
    for trial in planned:
        for axis, value in trial.axes.items():
            values = found.setdefault(axis, [])
            if axis != "seed" and value not in values:
                values.append(value)
    found.pop("seed", None)
    return {axis: _in_order(values) for axis, values in found.items()}


def _in_order(values: list[Any]) -> list[Any]:
    return sorted(values) if all(map(is_number, values)) else values


def _point(trial: TrialSpec, axes: Mapping[str, Sequence[Any]]) -> tuple[int, ...]:
    return tuple(values.index(trial.axes[axis]) for axis, values in axes.items())


def _values(request: Request, records: Sequence[TrialRecord]) -> dict[str, tuple[float, ...]]:
    """By cell the logarithm of the objective and, where all have it, the validation accuracy: means over seeds."""
    ok = [record for record in records if record.status is Status.OK]
    if not ok:
        return {}
    import numpy as np

    from orchestrator.decision.candidates import Contenders

    found = Contenders.among(request, ok)
    accuracy = [float(value) for value in found.cells["val_accuracy"]]
    measured = not any(map(math.isnan, accuracy))
    levels = np.log(found.totals[request.criteria.objective].means()).tolist()
    return {
        str(cell): (level, own) if measured else (level,)
        for cell, level, own in zip(found.cells["cell_id"], levels, accuracy, strict=True)
        if not math.isnan(level)  # the baseline is there without, too
    }
