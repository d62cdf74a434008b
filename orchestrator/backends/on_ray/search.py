"""Which cells of a large grid to try next, as a searcher of Ray Tune's sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from sweeps.mistakes import MistakesError

ASKS = 100
"""How often a searcher may name a cell that was tried or does not exist, before it has no other idea."""

METRIC = "objective"

Point = tuple[int, ...]
"""A cell: of each axis the number of its value."""


def searcher_of(given: Mapping[str, Any]) -> Searcher:
    """The searcher that {_target_: …, keys of its own} makes; MistakesError where it makes none."""
    keys = dict(given)
    target = keys.pop("_target_")
    try:
        searcher = resolve_name(target)(**keys)
    except Exception as error:
        raise MistakesError([f"tune.searcher={target!r}: {type(error).__name__}: {error}"]) from error
    if not isinstance(searcher, Searcher):
        raise MistakesError([f"tune.searcher={target!r} makes a {type(searcher).__name__}, not a Searcher of Tune's"])
    return searcher


def next_points(
    given: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
    tried: Mapping[Point, tuple[float, ...] | None],
    waiting: Sequence[Point],
    count: int,
) -> list[Point]:
    """As `search_optuna.next_points`, with the time alone for an objective: Tune's searchers have one.

    The searcher is made anew, and told what is known: of the points that were tried as far as it takes such (Tune's
    `add_evaluated_point`), and of all that it names again. MistakesError for one that takes no search space.
    """
    searcher = searcher_of(given)
    if not searcher.set_search_properties(METRIC, "min", {axis: tune.choice(list(axes[axis])) for axis in axes}):
        target = given["_target_"]
        raise MistakesError([f"tune.searcher={target!r} takes no search space: leave its own out, the axes are it"])
    for point, value in tried.items():
        if value is not None:
            with suppress(NotImplementedError):
                searcher.add_evaluated_point(_params(axes, point), value[0])
    chosen: list[Point] = []
    for number in range(ASKS):
        params = searcher.suggest(f"cell{number}") if len(chosen) < min(count, len(waiting)) else None
        if not isinstance(params, Mapping):
            break
        point = tuple(list(values).index(params[axis]) for axis, values in axes.items())
        if point in waiting and point not in chosen:
            chosen.append(point)
        else:
            value = tried.get(point)
            searcher.on_trial_complete(f"cell{number}", {METRIC: value[0]} if value else None, error=value is None)
    return chosen


def _params(axes: Mapping[str, Sequence[Any]], point: Point) -> dict[str, Any]:
    return {axis: values[number] for (axis, values), number in zip(axes.items(), point, strict=True)}
