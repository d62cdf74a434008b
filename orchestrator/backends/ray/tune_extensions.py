"""Extensions for users of Ray Tune: their callbacks, a place for Tune's copy of the results, and their searcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.search import Searcher

from orchestrator.store.secrets import NO_SECRETS, Secrets
from sweeps.errors import ConfigError

if TYPE_CHECKING:
    from ray.tune import Callback


@dataclass(frozen=True, kw_only=True)
class Extensions:
    """The extensions for one run of Tune."""

    callbacks: Sequence[Callback] = ()
    storage_path: str | None = None
    """A folder or URI; None: Tune's copy goes to a scratch folder."""
    secrets: Secrets = NO_SECRETS
    """Values hidden from the callbacks and the copy."""

    @staticmethod
    def of(section: Mapping[str, Any], secrets: Secrets = NO_SECRETS) -> Extensions:
        """Create them from the config's section `tune`. Raises ConfigError with everything that fails."""
        callbacks, errors = list["Callback"](), list[str]()
        for index, given in enumerate(section["callbacks"]):
            key = f"tune.callbacks[{index}]"
            try:
                made = resolve_name(given["_target_"])(**{name: v for name, v in given.items() if name != "_target_"})
            except Exception as error:
                errors.append(f"{key}={given['_target_']!r}: {type(error).__name__}: {error}")
                continue
            from ray.tune import Callback

            callbacks.append(made)
            if not isinstance(made, Callback):
                errors.append(f"{key}={given['_target_']!r} makes a {type(made).__name__}, not a ray.tune.Callback")
        if errors:
            raise ConfigError(errors)
        storage_path = section["storage_path"]
        if storage_path and "://" not in storage_path:  # Tune needs an absolute path or a URI
            storage_path = str(Path(storage_path).expanduser().absolute())
        return Extensions(callbacks=callbacks, storage_path=storage_path, secrets=secrets)

    def name(self, results_dir: Path) -> str:
        """The name of Tune's experiment; if Tune's copy is kept, each run of the sweep has its own."""
        return f"{results_dir.name}_{datetime.now():%Y-%m-%d_%H-%M-%S}" if self.storage_path else "sweep"


ASKS = 100
"""The search ends after this number of suggestions that were tried before or do not exist."""

METRIC = "objective"

Point = tuple[int, ...]
"""A cell, as the index of its value on each axis."""


def searcher_of(given: Mapping[str, Any]) -> Searcher:
    """Create the searcher of a config `{_target_: …, …}`. Raises ConfigError if that fails."""
    keys = dict(given)
    target = keys.pop("_target_")
    try:
        searcher = resolve_name(target)(**keys)
    except Exception as error:
        raise ConfigError([f"tune.searcher={target!r}: {type(error).__name__}: {error}"]) from error
    if not isinstance(searcher, Searcher):
        raise ConfigError([f"tune.searcher={target!r} makes a {type(searcher).__name__}, not a Searcher of Tune's"])
    return searcher


def next_points(
    given: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
    tried: Mapping[Point, tuple[float, ...] | None],
    waiting: Sequence[Point],
    count: int,
) -> list[Point]:
    """Like `plan.search.optuna_points`, with time as the only objective: Tune's searchers have just one.

    A new searcher is created each time. It gets the results of tried points by Tune's `add_evaluated_point` if it
    supports that, and otherwise when it suggests them again. Raises ConfigError if it accepts no search space.
    """
    searcher = searcher_of(given)
    if not searcher.set_search_properties(METRIC, "min", {axis: tune.choice(list(axes[axis])) for axis in axes}):
        target = given["_target_"]
        raise ConfigError([f"tune.searcher={target!r} takes no search space: leave its own out, the axes are it"])
    for point, value in tried.items():
        if value is not None:
            with suppress(NotImplementedError):
                evaluated = {axis: values[number] for (axis, values), number in zip(axes.items(), point, strict=True)}
                searcher.add_evaluated_point(evaluated, value[0])
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
