"""Composition of configs with Hydra: overrides in; a resolved config, its variants and the sweep's axes out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from hydra import compose
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config.config_files import check_file
from orchestrator.config.hydra_private import (
    Checks,
    error_line,
    initialised_at,
    parsed_overrides,
    values_of_sweep,
)
from orchestrator.config.key_checks import is_named, place_errors, unread_keys
from orchestrator.config.overrides import FROM_PROGRAM, is_search_path, key_of, with_alternatives
from orchestrator.config.request import AUTO_GPUS
from orchestrator.config.search_path import (
    Groups,
    config_dir,
    primary,
    primary_arguments,
    primary_folder,
    shipped_dirs,
)
from orchestrator.config.trust import check_hydra
from orchestrator.config.yaml_private import resolved
from orchestrator.store.secrets import Secrets
from sweeps.axes import Axes, flat
from sweeps.errors import ConfigError, UnknownChoice
from sweeps.sweep import MOST_TRIALS

WRONG = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError)
"""What composing raises for an invalid config: YAML that would create objects, a file that cannot be read or is not
UTF-8 (a ValueError), `model=null` (another), or lists nested too deep."""

CHECKS = Checks(file=check_file, hydra=check_hydra, folders=shipped_dirs()[1:])
"""The checks of every config that Hydra composes."""


@contextmanager
def initialised() -> Iterator[None]:
    """Context with Hydra initialised for the shipped configs and the user's own primary config."""
    folder = primary_folder()
    with initialised_at(config_dir(), None if folder is None else Path(folder).absolute(), CHECKS):
        yield


class Composition:
    """A composed config, and its variants for the sweep's config axes."""

    def __init__(
        self,
        overrides: Sequence[str],
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        composed: DictConfig | None = None,
    ) -> None:
        """Compose, unless Hydra has already; `sections` replace whole ones. Raises ConfigError."""
        self._sections = dict(sections or {})
        self._overrides = list(overrides)
        self.groups = Groups(list(filter(is_search_path, self._overrides)))
        try:
            whole = compose(primary(), self._overrides, return_hydra_config=True) if composed is None else composed
            self.hydra: DictConfig = whole.get("hydra", OmegaConf.create())
            """Hydra's own section; empty if the config was composed before."""
            self._config = _own_part(whole, self._sections, self._overrides)
            self.config = _plain(self._config)
            """The resolved config as plain values."""
        except ConfigError:
            raise
        except WRONG as error:
            # Only an error needs the explanations, which compose again to find all wrong overrides.
            from orchestrator.config.composition_errors import CompositionError

            raise CompositionError(error, self._overrides, self.groups) from None

    @property
    def sweep(self) -> str:
        """The chosen sweep config; empty if there is none."""
        chosen = [override.partition("=")[2] for override in self._overrides if override.startswith("sweep=")]
        return chosen[-1] if chosen else ""

    @cached_property
    def secrets(self) -> Secrets:
        """Values in the config that must not be written down."""
        # Only unresolved values tell what is from the environment.
        raw = OmegaConf.to_container(self._config, resolve=False)
        return Secrets.of(raw, self.config, os.environ)

    @cached_property
    def interpolated(self) -> set[str]:
        """The keys that interpolations name, also Hydra's own; a relative one without its leading dots."""
        raw = [OmegaConf.to_container(part, resolve=False) for part in (self._config, self.hydra)]
        inside = re.findall(r"\$\{([^}]*)", str(raw))
        return {name.strip(".") for text in inside for name in re.findall(r"[\w.]+", text)}

    def unread_errors(self, *, of_trials: bool) -> list[str]:
        """Return a line for each key that nothing reads, with what to write instead; without trials, for own keys."""
        keys = [key for key in unread_keys(self.config, of_trials=of_trials) if not is_named(key, self.interpolated)]
        if not keys:
            return []
        from orchestrator.config.composition_errors import unread_errors

        return unread_errors(keys, self._config, self._overrides, self.groups)

    @property
    def arguments(self) -> list[str]:
        """A command line that composes the same config, except for sections that a program gave as a whole."""
        return [*primary_arguments(), *self._overrides, *(f"{name}{FROM_PROGRAM}" for name in self._sections)]

    def axes(self) -> Axes:
        """Return the sweep's axes as lists of values; only `gpus` may also be the word `auto`."""
        axes = parsed_axes(self.config["sweep"]["axes"])
        if self.config["mode"] == "forecast" and self.config["forecast"]["gpus"]:
            return {**axes, "gpus": self.config["forecast"]["gpus"]}
        return axes

    def for_hydra(self) -> DictConfig:
        """Return the config with Hydra's own section, as Hydra needs it to run a job."""
        config = self._config.copy()  # variants are made from the config without Hydra's section
        with open_dict(config):
            config["hydra"] = self.hydra
        return config

    def variant(self, config_axes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the resolved config with these keys and groups set. Raises ConfigError for any that do not exist."""
        choices = {axis: choice for axis, choice in config_axes.items() if axis in self.groups.names}
        keys = {axis: value for axis, value in config_axes.items() if axis not in choices}
        # Groups come first, because they decide which keys exist.
        config = self._with_choices(choices) if choices else self._config.copy()
        errors = []
        for key, value in with_alternatives(keys).items():
            try:
                OmegaConf.update(config, key, value)
            except OmegaConfBaseException:
                from orchestrator.config.composition_errors import axis_error

                values = self.config["sweep"]["axes"].get(key)
                errors.append(axis_error(key, values, self._config, self._overrides, self.groups))
        if errors:
            raise ConfigError(errors)
        _leave_out_replaced(config, [*self._overrides, *keys])
        return _plain(config)

    def _with_choices(self, choices: Mapping[str, Any]) -> DictConfig:
        """Compose again with other choices of groups. Raises ConfigError."""
        for group, choice in choices.items():
            if choice not in self.groups.options(group):
                raise ConfigError([UnknownChoice(f"choice on axis {group}:", choice, self.groups.options(group))])
        chosen = [f"{group}={choice}" for group, choice in choices.items()]
        sections = {name: section for name, section in self._sections.items() if name not in choices}
        try:
            whole = compose(primary(), [*self._overrides, *chosen], return_hydra_config=True)
            return _own_part(whole, sections, self._overrides)
        except ConfigError:
            raise
        except WRONG as error:
            raise ConfigError([f"with {', '.join(chosen)}: {error_line(error)}"]) from None


def _plain(config: DictConfig) -> dict[str, Any]:
    """Return a composed config as plain values. Raises ConfigError, and the errors in WRONG."""
    values = resolved(config)
    if errors := list(place_errors(values)):
        raise ConfigError(errors)
    return values


def _own_part(whole: DictConfig, sections: Mapping[str, Any], overrides: Sequence[str]) -> DictConfig:
    """Take Hydra's section out of a composed config, put the sections of a program in, and return it."""
    # Interpolations are unresolved here, so that they see the sections of the program.
    with open_dict(whole):
        whole.pop("hydra", None)
        for name, section in sections.items():
            whole[name] = dict(section)
    OmegaConf.set_struct(whole, True)
    _leave_out_replaced(whole, overrides)
    return whole


def _leave_out_replaced(config: DictConfig, overrides: Iterable[str]) -> None:
    """Drop the keys of the shipped model that code of the user's replaces: `model.name=mypackage.models:build`."""
    # Keys of the shipped model would reach the constructor of the user, which does not know them.
    keys = {key_of(override) for override in overrides}
    if "model.name" not in keys or ":" not in str(config.model.get("name")):
        return
    kept = {key.split(".")[1] for key in keys if key.startswith("model.")}
    with open_dict(config):
        config.model = {key: value for key, value in config.model.items() if key in kept}


def parsed_axes(section: Mapping[str, Any]) -> Axes:
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
