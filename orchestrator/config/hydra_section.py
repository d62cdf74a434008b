"""Hydra's own part of the config: what config files may set in it, the code it names, and saving without secrets.

Hydra applies this part before the project's code runs: it sets environment variables, opens log files and imports
modules. A config file may come from a stranger, so it may set only what is listed here. The command line may set all.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose
from omegaconf import OmegaConf

from orchestrator.config.compose import WRONG, one_line
from orchestrator.config.hydra_private import parsed
from orchestrator.config.overrides import key_of
from orchestrator.config.search_path import (
    PRIMARY,
    folders,
    initialised,
    is_search_path,
    primary,
    primary_file,
    with_primary,
)
from orchestrator.config.trust import KEY, hydra_errors
from orchestrator.store.secrets import Secrets
from sweeps.errors import ConfigError

FROM_FILES = frozenset({"callbacks", "help", "launcher", "mode", "run", "searchpath", "sweep", "sweeper", "verbose"})
"""Parts that config files may set: texts, folders of Hydra's output, and plugins, whose code is checked."""

_SET_BY_HYDRA = frozenset({"overrides", "runtime", "job.config_name", "job.id", "job.num", "job.override_dirname"})
"""Parts that Hydra itself fills in."""


def check_search_path() -> None:
    """Raise ConfigError if the user's primary config adds something else than folders to the search path.

    The file is read without Hydra, which imports the modules that it names (`pkg://module`) when it composes.
    """
    if not (file := primary_file()):
        return
    try:
        config = yaml.safe_load(file.read_bytes())
    except yaml.YAMLError:
        return  # Hydra reports it, and composes nothing
    hydra = config.get("hydra") if isinstance(config, Mapping) else None
    given = hydra.get("searchpath") if isinstance(hydra, Mapping) else None
    places = given if isinstance(given, list) else [given] if given else []
    if wrong := [place for place in places if not re.fullmatch(r"file://.*|[^$:]*", str(place))]:
        raise ConfigError(
            f"{file}: hydra.searchpath has {place!r}; a config file may add only folders (file://…)" for place in wrong
        )


def check_hydra(overrides: Sequence[str], *, results_dir: Path | None = None) -> dict[str, Any]:
    """Return Hydra's own part of the config. Raises ConfigError if anything in it is not trusted.

    With `results_dir`, the folder of the sweep's output, also raises it if that folder or Hydra's own output folder is
    not writable.
    """
    try:
        config = _hydra_part(primary(), overrides)
        if primary_file() or folders(overrides):
            own = [each for each in overrides if key_of(each).startswith("hydra") and not is_search_path(each)]
            shipped = _shipped_part(tuple(own))
            if changed := sorted(_differences(config, shipped)):
                raise ConfigError(
                    f"hydra.{key} is set by a config file, which may not set it; the command line may: hydra.{key}=…"
                    for key in changed
                )
    except WRONG as error:
        raise ConfigError([one_line(error)]) from None
    # The modules that the command line trusts.
    values = [each.value() for each in parsed([each for each in overrides if each.startswith(f"{KEY}=")])]
    trusted = [str(module) for value in values if isinstance(value, list) for module in value]
    errors = list(hydra_errors(config, trusted))
    if results_dir:
        # The name of Hydra's output folder is known only up to an interpolation: `outputs/${now:%Y-%m-%d}`.
        if reason := _why_not_made(Path(config["run"]["dir"].partition("${")[0])):
            errors.append(f"{reason}, where Hydra keeps its log: set hydra.run.dir=FOLDER to put it elsewhere")
        if reason := _why_not_made(results_dir):
            errors.append(f"results_dir: {reason}")
    if errors:
        raise ConfigError(errors)
    return config


def _hydra_part(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    hydra = compose(name, list(overrides), return_hydra_config=True).hydra
    found = OmegaConf.to_container(hydra, resolve=False)
    return cast(dict[str, Any], found)


@functools.cache
def _shipped_part(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return Hydra's part with these overrides and without the user's files."""
    with with_primary(PRIMARY, None), initialised():
        return _hydra_part(PRIMARY, overrides)


def _differences(config: Mapping[str, Any], shipped: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys outside FROM_FILES that differ: of the part `job` each one, else the name of the part."""
    for part in {*config, *shipped} - {"job"}:
        if config.get(part) != shipped.get(part) and part not in FROM_FILES | _SET_BY_HYDRA:
            yield part
    # A sweeper passes its parameters on as if the command line had given them.
    params, given = ((part.get("sweeper") or {}).get("params") or {} for part in (config, shipped))
    for key in params:
        if key_of(key).startswith(("hydra", KEY)) and params[key] != given.get(key):
            yield f"sweeper.params.{key}"
    for key in {*config["job"], *shipped["job"]}:
        if config["job"].get(key) != shipped["job"].get(key) and f"job.{key}" not in _SET_BY_HYDRA:
            yield f"job.{key}"


def _why_not_made(folder: Path) -> str:
    """Return why a folder cannot be created, judged without creating it; empty if it can."""
    above = (folder.absolute(), *folder.absolute().parents)
    there = next(each for each in above if os.path.exists(each))  # False also for lack of permission
    if not there.is_dir():
        return f"{there} is not a folder"
    return "" if os.access(there, os.W_OK) else f"{there} cannot be written to"


@contextmanager
def saved_without_secrets() -> Iterator[None]:
    """Context in which configs that Hydra or a sweeper plugin saves contain no secrets.

    Hydra writes the whole config and every override as given, and no option controls where and when. Interpolations
    stay unresolved, because they may have other values in the environment of the reader.
    """
    save = OmegaConf.save

    def save_clean(config: Any, f: Any, resolve: bool = False) -> None:
        plain = OmegaConf.to_container(OmegaConf.create(config), resolve=False)
        save(OmegaConf.create(Secrets.of(plain, plain, os.environ).value(plain)), f)

    OmegaConf.save = staticmethod(save_clean)  # type: ignore[method-assign]
    try:
        yield
    finally:
        OmegaConf.save = staticmethod(save)  # type: ignore[method-assign]
