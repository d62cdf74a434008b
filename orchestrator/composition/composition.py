"""The config as composed by Hydra, as a whole and for single points of a sweep, and the sweep's axes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from orchestrator.composition.composition_error import WRONG, CompositionError, dotted_keys, one_line, resolved
from orchestrator.composition.config_groups import Groups
from orchestrator.composition.overrides import with_alternatives
from orchestrator.composition.search_path import primary, primary_arguments, shadowed
from orchestrator.config.override_text import FROM_PROGRAM
from orchestrator.storage.secrets import Secrets
from sweeps.axes import Axes
from sweeps.dotted import flat
from sweeps.mistakes import MistakesError, nearest, unknown
from sweeps.sweep import MOST_TRIALS, STANDARD_AXES


class Composition:
    """A composed config, and its variants for the sweep's config axes."""

    def __init__(self, overrides: Sequence[str], sections: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Raises MistakesError with a line for every override that does not fit; `sections` replace whole ones."""
        self._sections = dict(sections or {})
        self._overrides = list(overrides)
        self.groups = Groups(self._overrides)
        try:
            self._config = self._composed([], {})
            self.config = resolved(self._config)
            """The resolved config as plain values."""
        except MistakesError:
            raise
        except WRONG as error:
            raise CompositionError(error, self._overrides, self.groups) from None

    @property
    def sweep(self) -> str:
        """The chosen sweep config; empty if there is none."""
        chosen = [override.partition("=")[2] for override in self._overrides if override.startswith("sweep=")]
        return chosen[-1] if chosen else ""

    @property
    def secrets(self) -> Secrets:
        """Values in the config that must not be written down."""
        raw = OmegaConf.to_container(self._config, resolve=False)
        return Secrets.of(raw, self.config, os.environ)

    @property
    def arguments(self) -> list[str]:
        """A command line that composes the same config, except for sections that a program gave as a whole."""
        return [*primary_arguments(), *self._overrides, *(f"{name}{FROM_PROGRAM}" for name in self._sections)]

    def axes(self) -> Axes:
        """The sweep's axes as lists of values; only `gpus` may also be the word `auto`."""
        return axes_of(self.config["sweep"]["axes"])

    def _composed(self, further: Sequence[str], chosen: Mapping[str, Any]) -> DictConfig:
        config = compose(primary(), [*self._overrides, *further], return_hydra_config=True)
        if mistakes := list(shadowed(config.hydra)):
            raise MistakesError(mistakes)
        with open_dict(config):
            del config["hydra"]
            for name, section in self._sections.items():
                if name not in chosen:
                    config[name] = dict(section)
        return config

    def variant(self, config_axes: Mapping[str, Any]) -> dict[str, Any]:
        """The resolved config with these keys and groups set. Raises MistakesError for any that do not exist."""
        choices = {axis: value for axis, value in config_axes.items() if axis in self.groups.names}
        chosen = [f"{group}={choice}" for group, choice in choices.items()]
        for group, choice in choices.items():
            options = self.groups.options(group)
            if choice not in options:
                raise MistakesError([unknown(f"choice on axis {group}:", choice, options)])
        try:
            config = self._composed(chosen, choices) if chosen else self._config.copy()
        except MistakesError:
            raise
        except WRONG as error:
            raise MistakesError([f"with {', '.join(chosen)}: {one_line(error)}"]) from None
        keys = {axis: value for axis, value in config_axes.items() if axis not in choices}
        for key, value in with_alternatives(keys).items():
            try:
                OmegaConf.update(config, key, value)
            except OmegaConfBaseException:
                dotted = (each for each in dotted_keys(self.config) if not each.startswith("sweep."))
                known = [*dotted, *self.groups.names, *STANDARD_AXES]
                raise MistakesError([f"axis {key!r} is not a config key or group{nearest(key, known)}"]) from None
        return resolved(config)


def axes_of(given: Mapping[str, Any]) -> Axes:
    """The axes that are not null as lists of values; only `gpus` may also be the word `auto`. Raises MistakesError.

    An axis written as nested keys (`+sweep.axes.optimizer.lr=[.1,.2]`) goes by its dotted name.
    """
    found = {axis: _axis_values(axis, value) for axis, value in flat(given) if value is not None}
    return cast(Axes, found)


def _axis_values(axis: str, given: Any) -> Any:
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
    return list(itertools.islice(override.sweep_iterator(), MOST_TRIALS + 1))  # 'range(0,1e12)' would exhaust memory


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]
