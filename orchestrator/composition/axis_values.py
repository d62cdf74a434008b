"""A sweep's axes as they are written in a config: lists, or one text in Hydra's value grammar."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from orchestrator.composition.composition_error import one_line
from sweeps.axes import Axes
from sweeps.dotted import flat
from sweeps.mistakes import MistakesError
from sweeps.sweep import MOST_TRIALS


def axes_of(given: Mapping[str, Any]) -> Axes:
    """The axes that are not null as lists of values; only `gpus` may also be the word `auto`. Raises MistakesError.

    An axis written as nested keys (`+sweep.axes.optimizer.lr=[.1,.2]`) is one under its dotted name.
    """
    found = {axis: _values(axis, value) for axis, value in flat(given) if value is not None}
    return cast(Axes, found)


def _values(axis: str, given: Any) -> Any:
    if isinstance(given, list):
        return given
    if axis == "gpus" and given == "auto":
        return given
    if not isinstance(given, str):
        return [given]
    try:
        override = OverridesParser.create().parse_override(f"{axis}={given}")
    except HydraException as error:
        raise MistakesError([f"sweep.axes.{axis}={given!r}: {one_line(error)}"]) from None
    if not override.is_sweep_override():
        return _as_list(override.value())
    return list(itertools.islice(override.sweep_iterator(), MOST_TRIALS + 1))  # 'range(0,1e12)' is longer than memory


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]
