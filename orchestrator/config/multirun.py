"""Several values in Hydra's grammar: the axes of a sweep, and the sweeps of a multirun."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.errors import HydraException

from orchestrator.config.hydra_private import error_line, parsed_overrides, values_of_sweep
from orchestrator.config.overrides import key_of
from orchestrator.config.request import AUTO_GPUS
from sweeps.axes import Axes, flat
from sweeps.errors import ConfigError
from sweeps.sweep import MOST_TRIALS


def axes_of(section: Mapping[str, Any]) -> Axes:
    """Return the axes that are not null as lists of values; only `gpus` may also be `auto`. Raises ConfigError."""
    axes: dict[str, Any] = {}
    errors: list[str] = []
    for axis, value in ((axis, value) for axis, value in flat(section) if value is not None):
        try:
            axes[axis] = _axis_values(axis, value)
        except HydraException as error:
            errors.append(f"sweep.axes.{axis}={value!r}: {error_line(error)}")
    if errors:
        raise ConfigError(errors)
    return axes


def _axis_values(axis: str, value: Any) -> Any:
    """Return the values of an axis as a list; `auto` for GPUs stays a word. Raises HydraException."""
    if isinstance(value, list) or (axis == "gpus" and value == AUTO_GPUS):
        return value
    if not isinstance(value, str):
        return [value]
    (override,) = parsed_overrides([f"{axis}={value}"])
    # With Hydra's own grammar, so that an axis takes what a multirun takes: lists, range(), choice().
    if not override.is_sweep_override():
        values = override.value()
        return values if isinstance(values, list) else [values]
    return values_of_sweep(override, MOST_TRIALS)


_MOST_NESTED = 20  # Hydra's parser is recursive: deeper nesting would exhaust the stack


def is_data(argument: str) -> bool:
    """Return whether an override sets one plain value, which reads nothing from the environment."""
    # Nesting is measured before parsing, since the parser itself would fail.
    depth = deepest = 0
    for character in argument:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if "${" in argument or deepest > _MOST_NESTED:
        return False
    try:
        (override,) = parsed_overrides([argument])
    except HydraException:
        return False
    # Several values would start several sweeps, and a package moves the setting elsewhere.
    return not override.is_sweep_override() and not override.is_delete() and override.package is None


def is_known(overrides: Iterable[str]) -> bool:
    """Return whether a multirun runs exactly the sweeps that the overrides list."""
    # Another sweeper chooses sweeps during the run, and `${hydra:…}` is known only then.
    chooses = ("hydra/sweeper", "hydra.sweeper")
    return not any("${hydra:" in override or key_of(override).startswith(chooses) for override in overrides)


def is_multirun(overrides: Iterable[str]) -> bool:
    """Return whether the overrides ask for a multirun, in any spelling: `hydra.mode=MULTIRUN`, `++hydra.mode=…`."""
    modes = [override.partition("=")[2] for override in overrides if key_of(override) == "hydra.mode"]
    return bool(modes) and modes[-1].strip("'\"") in ("MULTIRUN", "RunMode.MULTIRUN")


def expanded(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each sweep of a multirun. Raises ConfigError if there are more than MOST_TRIALS."""
    try:
        given = list(zip(parsed_overrides(overrides), overrides, strict=True))
    except HydraException:  # Hydra reports this itself before running anything
        return [list(overrides)]
    most = MOST_TRIALS + 1  # 'range(0,1e12)' exhausts memory
    choices = [
        [f"{override.get_key_element()}={value}" for value in itertools.islice(override.sweep_string_iterator(), most)]
        if override.is_discrete_sweep()
        else [text]
        for override, text in given
    ]
    if math.prod(map(len, choices)) > MOST_TRIALS:
        raise ConfigError([f"a multirun of more than {MOST_TRIALS:,} sweeps"])
    return [list(combination) for combination in itertools.product(*choices)]
